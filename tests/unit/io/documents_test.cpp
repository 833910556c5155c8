#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/io/loader.hpp"

#include "import/document_filter.hpp"
#include "text_files.hpp"

namespace strata::io::documents_test {
namespace {

using test::error_of;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Ids = std::vector<std::int64_t>;

std::vector<std::int64_t> inputs_of(const PackedSamples& samples, std::int64_t sample) {
  std::vector<std::int64_t> inputs;
  for (const Piece& piece : samples.pieces(sample)) {
    inputs.push_back(piece.inputs);
  }
  return inputs;
}

TEST(Documents, KnowWhereATokenIsAndWhetherItCounts) {
  const Documents documents{.ends = {3, 4, 9}, .counted = {1, 3, 7, 8}};
  const std::vector<std::int64_t> indices{0, 0, 0, 1, 2, 2, 2, 2, 2};
  const std::vector<bool> counts{false, true, true, false, false, false, false, true, false};
  for (std::int64_t token = 0; token < 9; ++token) {
    EXPECT_EQ(documents.index_of(token), indices[static_cast<std::size_t>(token)]);
    EXPECT_EQ(documents.counts(token), counts[static_cast<std::size_t>(token)]);
  }
  EXPECT_EQ(documents.begin(0), 0);
  EXPECT_EQ(documents.begin(2), 4);
  const Documents part = documents.part(2, 5);
  EXPECT_THAT(part.ends, ElementsAre(1, 2, 5));
  EXPECT_THAT(part.counted, ElementsAre(0, 1));
  const Documents rest = documents.part(8, 1);
  EXPECT_THAT(rest.ends, ElementsAre(1));
  EXPECT_FALSE(rest.counts(0));
}

TEST(PackedSamples, LongDocumentsAreCutAndThoseOfOneTokenLeftOut) {
  // 11 tokens have 10 targets, in parts of 4.
  const PackedSamples samples({.ends = {11, 12, 15}}, 4, Packing::kDocuments);
  ASSERT_EQ(samples.samples(), 4);
  EXPECT_THAT(samples.pieces(0), ElementsAre(Piece{0, 4}));
  EXPECT_THAT(samples.pieces(1), ElementsAre(Piece{4, 4}));
  EXPECT_THAT(samples.pieces(2), ElementsAre(Piece{8, 2}));
  EXPECT_THAT(samples.pieces(3), ElementsAre(Piece{12, 2}));
  EXPECT_EQ(samples.inputs(), 12);
  EXPECT_EQ(PackedSamples({.ends = {1, 2}}, 4, Packing::kBestFit).samples(), 0);
}

TEST(PackedSamples, BestFitTakesTheFullestSampleWithRoom) {
  // Inputs of 5, 2, 7, 3, 3 and 8 in contexts of 10.
  const PackedSamples samples({.ends = {6, 9, 17, 21, 25, 34}}, 10, Packing::kBestFit);
  ASSERT_EQ(samples.samples(), 3);
  EXPECT_THAT(inputs_of(samples, 0), ElementsAre(8));
  EXPECT_THAT(inputs_of(samples, 1), ElementsAre(7, 3));
  EXPECT_THAT(inputs_of(samples, 2), ElementsAre(5, 2, 3));
}

/// Lengths spread from 2 to `most`, most of them short.
Documents skewed(std::int64_t documents, std::int64_t most) {
  Documents result;
  std::int64_t end = 0;
  std::uint64_t state = 1;
  for (std::int64_t d = 0; d < documents; ++d) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const double uniform = static_cast<double>(state >> 11U) * 0x1p-53;
    end += 2 + static_cast<std::int64_t>(static_cast<double>(most) * uniform * uniform * uniform);
    result.ends.push_back(end);
  }
  return result;
}

TEST(PackedSamples, EveryInputIsInOneSampleAndFewPlacesAreEmpty) {
  constexpr std::int64_t kContext = 256;
  const Documents documents = skewed(5000, 1000);
  const PackedSamples samples(documents, kContext, Packing::kBestFit);
  std::vector<int> seen(static_cast<std::size_t>(documents.ends.back()));
  for (std::int64_t sample = 0; sample < samples.samples(); ++sample) {
    std::int64_t inputs = 0;
    std::int64_t last = -1;
    for (const Piece& piece : samples.pieces(sample)) {
      EXPECT_GT(piece.first, last);
      last = piece.first;
      inputs += piece.inputs;
      EXPECT_EQ(documents.index_of(piece.first), documents.index_of(piece.first + piece.inputs));
      for (std::int64_t token = piece.first; token < piece.first + piece.inputs; ++token) {
        ++seen[static_cast<std::size_t>(token)];
      }
    }
    EXPECT_LE(inputs, kContext);
  }
  // All but the last token of each document.
  EXPECT_TRUE(std::ranges::all_of(seen, [](int count) { return count <= 1; }));
  EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), std::int64_t{0}),
            documents.ends.back() - std::ssize(documents.ends));
  EXPECT_GE(static_cast<double>(samples.inputs()),
            0.97 * static_cast<double>(samples.samples() * kContext));
}

/// A data set of bytes, each text a document.
Dataset of_texts(const TemporaryDirectory& directory, const std::vector<std::string>& texts) {
  ImportOptions options;
  options.format = ImportFormat::kText;
  options.tokenizer = TokenizerKind::kBytes;
  options.split = "1.0";
  options.output = directory / "out";
  for (std::size_t i = 0; i < texts.size(); ++i) {
    options.inputs.push_back(directory / (std::to_string(i) + ".txt"));
    write_file(options.inputs.back(), texts[i]);
  }
  return Dataset::open(import_dataset(options).train);
}

template <typename T>
std::vector<T> row_of(const ConstTensorView& view, std::int64_t row) {
  const auto values = view.host<T>();
  const auto first = values.begin() + row * view.shape()[1];
  return {first, first + view.shape()[1]};
}

std::string text_of(const Ids& ids) {
  std::string text;
  for (const std::int64_t id : ids) {
    text += id < 0 ? '-' : id == 0 ? '.' : static_cast<char>(id);
  }
  return text;
}

LoaderOptions all_samples(const Dataset& dataset) {
  LoaderOptions options;
  options.order = Order::kSequential;
  options.microbatch = options.global_batch = dataset.info().samples;
  options.parts = Parts::kBoth | Parts::kDocumentStarts | Parts::kPositions;
  options.separate_documents = Switch::kOn;
  return options;
}

TEST(Documents, AreStoredWithTheirTokens) {
  const TemporaryDirectory directory;
  const Dataset dataset = of_texts(directory, {"abcde", "fgh", "i"});
  EXPECT_EQ(dataset.info().documents, 3);
  EXPECT_EQ(dataset.info().counted_tokens, 9);
  EXPECT_THAT(dataset.documents().ends, ElementsAre(5, 8, 9));
  EXPECT_THAT(dataset.documents().counted, IsEmpty());
}

TEST(Documents, OfOneTextAreNotKnown) {
  const TemporaryDirectory directory;
  Dataset dataset = of_texts(directory, {"abcdefgh"});
  EXPECT_THAT(error_of([&] { dataset.set_context(4, Packing::kBestFit); }),
              AllOf(HasSubstr("does not say where its documents end"), HasSubstr("--text-field")));
}

TEST(Documents, SamplesOfDocumentsHaveNoTargetOutside) {
  const TemporaryDirectory directory;
  Dataset dataset = of_texts(directory, {"abcdefgh", "ijk", "l", "mn"});
  dataset.set_context(5, Packing::kDocuments);
  ASSERT_EQ(dataset.info().samples, 4);
  EXPECT_EQ(dataset.info().packed_inputs, 7 + 2 + 1);
  Loader loader(dataset, all_samples(dataset));
  const LoadedStep& step = loader.next();
  const std::vector<std::pair<std::string, std::string>> expected{
      {"abcde", "bcdef"}, {"fg...", "gh---"}, {"ij...", "jk---"}, {"m....", "n----"}};
  for (std::int64_t row = 0; row < 4; ++row) {
    const auto& [inputs, targets] = expected[static_cast<std::size_t>(row)];
    EXPECT_EQ(text_of(row_of<std::int64_t>(step.inputs(0), row)), inputs);
    EXPECT_EQ(text_of(row_of<std::int64_t>(step.targets(0), row)), targets);
  }
  EXPECT_THAT(row_of<std::uint32_t>(step.document_starts(0), 2), ElementsAre(0, 0, 2, 3, 4));
  EXPECT_THAT(row_of<std::int64_t>(step.positions(0), 2), ElementsAre(0, 1, 0, 0, 0));
}

TEST(Documents, PackedOnesKeepTheirPlaces) {
  const TemporaryDirectory directory;
  Dataset dataset = of_texts(directory, {"abc", "defg", "hi"});
  dataset.set_context(6, Packing::kBestFit);
  ASSERT_EQ(dataset.info().samples, 1);
  Loader loader(dataset, all_samples(dataset));
  const LoadedStep& step = loader.next();
  EXPECT_EQ(text_of(row_of<std::int64_t>(step.inputs(0), 0)), "abdefh");
  EXPECT_EQ(text_of(row_of<std::int64_t>(step.targets(0), 0)), "bcefgi");
  EXPECT_THAT(row_of<std::uint32_t>(step.document_starts(0), 0), ElementsAre(0, 0, 2, 2, 2, 5));
  EXPECT_THAT(row_of<std::int64_t>(step.positions(0), 0), ElementsAre(0, 1, 0, 1, 2, 0));
}

TEST(Documents, InBlocksATargetOfAnotherDocumentCountsOnlyTogether) {
  const TemporaryDirectory directory;
  Dataset dataset = of_texts(directory, {"abc", "de", "fghi"});
  dataset.set_context(4);
  LoaderOptions options = all_samples(dataset);
  {
    Loader loader(dataset, options);
    const LoadedStep& step = loader.next();
    EXPECT_EQ(text_of(row_of<std::int64_t>(step.targets(0), 0)), "bc-e");
    EXPECT_THAT(row_of<std::uint32_t>(step.document_starts(0), 0), ElementsAre(0, 0, 0, 3));
    EXPECT_EQ(text_of(row_of<std::int64_t>(step.targets(0), 1)), "-ghi");
    EXPECT_THAT(row_of<std::uint32_t>(step.document_starts(0), 1), ElementsAre(0, 1, 1, 1));
    EXPECT_THAT(row_of<std::int64_t>(step.positions(0), 1), ElementsAre(0, 0, 1, 2));
  }
  options.parts = Parts::kBoth;
  options.separate_documents = Switch::kOff;
  Loader loader(dataset, options);
  EXPECT_EQ(text_of(row_of<std::int64_t>(loader.next().targets(0), 0)), "bcde");
}

TEST(Documents, EndAfterEachSeparator) {
  const TemporaryDirectory directory;
  test::write_pairs(directory, test::small_pairs());
  const std::vector<std::uint16_t> tokens{257, 260, 258, 260, 260, 33};
  write_file(directory / "tokens.bin", test::raw_bytes(std::span<const std::uint16_t>(tokens)));
  ImportOptions options;
  options.format = ImportFormat::kNanoGptTokens;
  options.inputs = {directory / "tokens.bin"};
  options.tokenizer = TokenizerKind::kGpt2;
  options.encoder = directory / "encoder.json";
  options.merges = directory / "vocab.bpe";
  options.split = "1.0";
  options.output = directory / "out";
  const Dataset stored = Dataset::open(import_dataset(options).train);
  EXPECT_EQ(stored.info().documents, 4);
  EXPECT_THAT(stored.documents().ends, ElementsAre(2, 4, 5, 6));
  // In a single text they are found when they are asked for.
  options = test::text_options(directory, TokenizerKind::kGpt2, {"the<|endoftext|>the"}, "1.0");
  options.markers = Markers::kRecognised;
  options.existing = Existing::kReplace;
  const Dataset found = Dataset::open(import_dataset(options).train);
  EXPECT_EQ(found.info().documents, 0);
  EXPECT_THAT(found.documents().ends, ElementsAre(2, 3));
}

TEST(Documents, EmptyOnesAndPartsOfOneAreNone) {
  const TemporaryDirectory directory;
  test::write_pairs(directory, test::small_pairs());
  write_file(directory / "lines.jsonl",
             "{\"text\": \"abc\"}\n{\"text\": \"\"}\n{\"text\": \"defg\"}\n");
  ImportOptions options = test::text_options(directory, TokenizerKind::kBytes, {"x"}, "5,2");
  options.inputs = {directory / "lines.jsonl"};
  options.text_field = "text";
  const ImportReport report = import_dataset(options);
  EXPECT_THAT(Dataset::open(report.train).documents().ends, ElementsAre(3, 5));
  EXPECT_THAT(Dataset::open(report.test).documents().ends, ElementsAre(2));
}

TEST(Documents, ASeparatorEndsTheOneBeforeIt) {
  const TemporaryDirectory directory;
  test::write_pairs(directory, test::small_pairs());
  const Dataset dataset =
      Dataset::open(import_dataset(test::text_options(directory, TokenizerKind::kGpt2,
                                                      {"the", "the", "aaa"}, "1.0"))
                        .train);
  EXPECT_THAT(dataset.documents().ends, ElementsAre(2, 4, 6));
}

TEST(Documents, ASplitWithinADocumentCutsIt) {
  const TemporaryDirectory directory;
  ImportOptions options =
      test::text_options(directory, TokenizerKind::kBytes, {"abc", "defgh", "ij"}, "5,5");
  const ImportReport report = import_dataset(options);
  EXPECT_THAT(Dataset::open(report.train).documents().ends, ElementsAre(3, 5));
  EXPECT_THAT(Dataset::open(report.test).documents().ends, ElementsAre(3, 5));
}

/// Texts of a JSON line each, of which the rules choose; the texts of either split come back.
struct Chosen {
  std::vector<std::string> train;
  std::vector<std::string> test;
  std::vector<std::string> notes;
};

std::vector<std::string> texts_of(const std::filesystem::path& master) {
  std::vector<std::string> texts;
  for (std::int64_t d = 0; !master.empty(); ++d) {
    const Dataset dataset = Dataset::open(master);
    if (d == std::ssize(dataset.documents().ends)) {
      break;
    }
    std::string text = document_text(dataset, d);
    text.pop_back();  // the line's end
    texts.push_back(text);
  }
  return texts;
}

Chosen chosen(const TemporaryDirectory& directory, const std::vector<std::string>& texts,
              const DocumentRules& rules, TokenizerKind tokenizer = TokenizerKind::kBytes) {
  std::string lines;
  for (const std::string& text : texts) {
    lines += "{\"text\": \"" + text + "\"}\n";
  }
  ImportOptions options =
      test::text_options(directory, tokenizer, {"x"}, rules.held_out > 0.0 ? "" : "1.0");
  write_file(directory / "lines.jsonl", lines);
  options.inputs = {directory / "lines.jsonl"};
  options.text_field = "text";
  options.documents = rules;
  options.existing = Existing::kReplace;
  const ImportReport report = import_dataset(options);
  return {texts_of(report.train), texts_of(report.test), report.notes};
}

TEST(DocumentRules, LeaveOutRepeatedShortAndLongTexts) {
  const TemporaryDirectory directory;
  const std::vector<std::string> texts{"one", "two", "one", "\u00e9\u00e9", "three", "two", "four"};
  EXPECT_THAT(chosen(directory, texts, {.repeated = Repeated::kLeftOut}).train,
              ElementsAre("one", "two", "\u00e9\u00e9", "three", "four"));
  const Chosen some = chosen(
      directory, texts, {.repeated = Repeated::kLeftOut, .min_characters = 3, .max_characters = 4});
  EXPECT_THAT(some.train, ElementsAre("one", "two", "four"));
  EXPECT_THAT(some.notes,
              ElementsAre("left out: 2 of 7 documents, which repeat an earlier one",
                          "left out: 1 of 7 documents, which have fewer than 3 characters",
                          "left out: 1 of 7 documents, which have more than 4 characters"));
  EXPECT_THAT(error_of([&] { chosen(directory, texts, {.min_characters = 9}); }, ExitCode::kData),
              AllOf(HasSubstr("no document is left"), HasSubstr("7 of 7 documents")));
}

TEST(DocumentRules, HoldOutTheSameTextsWhenACorpusGrows) {
  const TemporaryDirectory directory;
  std::vector<std::string> texts;
  for (int i = 0; i < 160; ++i) {
    texts.push_back("text " + std::to_string(i % 155));
  }
  const DocumentRules rules{.held_out = 0.25};
  const std::vector<std::string> first(texts.begin(), texts.begin() + 80);
  const Chosen before = chosen(directory, first, rules);
  const Chosen after = chosen(directory, texts, rules);
  EXPECT_EQ(before.train.size() + before.test.size(), 80);
  EXPECT_EQ(after.train.size() + after.test.size(), 160);
  EXPECT_GT(after.test.size(), 20);
  EXPECT_LT(after.test.size(), 60);
  // In file order, so what a corpus had comes first; equal texts are on one side.
  EXPECT_TRUE(std::equal(before.train.begin(), before.train.end(), after.train.begin()));
  EXPECT_TRUE(std::equal(before.test.begin(), before.test.end(), after.test.begin()));
  for (const std::string& text : after.test) {
    EXPECT_EQ(std::ranges::count(after.train, text), 0);
  }
  // Ids of characters change at the end; a separator stands behind each document, the last too.
  EXPECT_EQ(chosen(directory, texts, rules, TokenizerKind::kChars).test, after.test);
  test::write_pairs(directory, test::small_pairs());
  std::vector<std::string> separated = after.test;
  std::ranges::for_each(separated, [](std::string& text) { text += "<|endoftext|>"; });
  EXPECT_EQ(chosen(directory, texts, rules, TokenizerKind::kGpt2).test, separated);
  EXPECT_THAT(error_of(
                  [&] {
                    chosen(directory, {"a", "b"}, {.held_out = 1e-9});
                  },
                  ExitCode::kData),
              HasSubstr("puts none of 2 documents into the test split"));
}

TEST(DocumentRules, TestFilesLoseWhatTrainFilesHave) {
  const TemporaryDirectory directory;
  ImportOptions options = test::text_options(directory, TokenizerKind::kBytes, {"x"}, "");
  write_file(directory / "a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  write_file(directory / "b.jsonl", "{\"text\": \"two\"}\n{\"text\": \"four\"}\n");
  options.inputs = {directory / "a.jsonl"};
  options.test_inputs = {directory / "b.jsonl"};
  options.text_field = "text";
  options.documents.repeated = Repeated::kLeftOut;
  const ImportReport report = import_dataset(options);
  EXPECT_THAT(texts_of(report.train), ElementsAre("one", "two"));
  EXPECT_THAT(texts_of(report.test), ElementsAre("four"));
  options.documents.held_out = 0.5;
  options.existing = Existing::kReplace;
  EXPECT_THAT(error_of([&] { import_dataset(options); }, ExitCode::kUsage),
              HasSubstr("both say what is in the test split"));
}

TEST(DocumentRules, HeldOutDocumentsKeepWhatCounts) {
  const Documents stream{.ends = {3, 5, 9, 10}, .counted = {1, 4, 6, 7, 8, 10}};
  const SplitDocuments split = split_documents(stream, {false, true, false, true});
  EXPECT_THAT(split.runs, ElementsAre(grid::Range{0, 3}, grid::Range{5, 9}, grid::Range{3, 5},
                                      grid::Range{9, 10}));
  EXPECT_EQ(split.train_tokens, 7);
  EXPECT_THAT(split.documents.ends, ElementsAre(3, 7, 9, 10));
  EXPECT_THAT(split.documents.counted, ElementsAre(1, 3, 4, 5, 6, 8, 9, 10));
}

}  // namespace
}  // namespace strata::io::documents_test
