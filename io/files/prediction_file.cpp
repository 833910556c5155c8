#include "strata/io/prediction_file.hpp"

#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/io/text_file.hpp"

namespace strata::io {
namespace {

/// The header of a NumPy array of float64.
/// Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, version 1.0.
std::string npy_header(std::int64_t rows, std::int64_t columns) {
  constexpr std::size_t kPrefix = 10;
  constexpr std::size_t kAlignment = 64;
  std::string text =
      fmt::format("{{'descr': '<f8', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  while ((kPrefix + text.size() + 1) % kAlignment != 0) {
    text += ' ';
  }
  text += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(text.size() & 0xffU);
  header += static_cast<char>(text.size() >> 8U);
  return header + text;
}

}  // namespace

PredictionFile::PredictionFile(std::filesystem::path path, const PredictionLayout& layout)
    : path_(std::move(path)), layout_(layout), file_(path_, std::ios::binary | std::ios::trunc) {
  if (layout_.format == PredictionFormat::kNpy) {
    file_ << npy_header(layout_.samples, layout_.numbers);
  } else {
    for (std::size_t i = 0; i < layout_.columns.size(); ++i) {
      file_ << (i == 0 ? "" : ",") << csv_field(layout_.columns[i]);
    }
    file_ << '\n';
  }
  require_written();
}

void PredictionFile::add(std::span<const std::string> texts, std::span<const double> numbers) {
  require(std::ssize(numbers) == layout_.numbers, "{} numbers of a sample, expected {}",
          numbers.size(), layout_.numbers);
  ++added_;
  if (layout_.format == PredictionFormat::kNpy) {
    file_.write(reinterpret_cast<const char*>(numbers.data()),
                static_cast<std::streamsize>(numbers.size_bytes()));
    require_written();
    return;
  }
  line_.clear();
  for (const std::string& text : texts) {
    line_ += csv_field(text) + ",";
  }
  for (const double number : numbers) {
    fmt::format_to(std::back_inserter(line_), "{:.{}g},", number, layout_.digits);
  }
  line_.back() = '\n';
  file_ << line_;
  require_written();
}

void PredictionFile::finish() {
  require(added_ == layout_.samples, "{} of {} predictions", added_, layout_.samples);
  file_.close();
  require_written();
}

void PredictionFile::require_written() const {
  if (!file_) {
    fail(ExitCode::kUsage, "cannot write the predictions to {}: {}; choose another --output",
         path_.string(), std::strerror(errno));
  }
}

}  // namespace strata::io
