// Trains a classifier from C++, on as many ranks as mpirun starts: mpirun -n 2 train DIRECTORY
#include <filesystem>
#include <fstream>

#include "strata/comm/mpi.hpp"
#include "strata/config/config_file.hpp"
#include "strata/io/import.hpp"
#include "strata/train/trainer.hpp"

/// Points of a square, classified by whether they lie in a circle.
void make_data(const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory / "run");
  std::ofstream csv(directory / "points.csv");
  csv << "x,y,class\n";
  for (int i = 0; i < 4096; ++i) {
    const double x = (i % 64) / 32.0 - 1.0, y = (i * 2531 % 4096) / 2048.0 - 1.0;
    csv << x << ',' << y << ',' << (x * x + y * y < 0.5 ? "in" : "out") << '\n';
  }
  csv.close();
  strata::io::import_dataset({.format = strata::io::ImportFormat::kCsv,
                              .inputs = {directory / "points.csv"},
                              .table = {.label = "class"},
                              .output = directory / "data"});
}

void train(strata::comm::MpiSession& mpi, const std::filesystem::path& directory) {
  const bool is_first = mpi.world().rank() == 0;
  strata::comm::agree(mpi.world(), [&] { is_first ? make_data(directory) : void(); });
  strata::config::RunConfig config;
  config.model.layers = {"dense 32 relu", "dense 32 relu", "dense 2"};
  config.numerics.lanes = 4;  // for up to 4 replicas, with the same bits
  config.optimizer.options.kind = strata::optim::OptimizerKind::kAdamw;
  config.data.train = directory / "data/train.h5";
  config.data.test = directory / "data/test.h5";
  config.train.epochs = 100;
  config.run.dir = directory / "run";
  strata::Log log(is_first ? strata::Log::Output::kPrint : strata::Log::Output::kSilent);
  auto data = strata::io::Dataset::open(config.data.train);
  auto test_data = strata::io::Dataset::open(config.data.test);
  const auto plan = strata::plan::prepare(config, mpi.world().size(), data.info(), {});
  auto groups =
      strata::comm::make_groups(mpi.world(), mpi.engine(), plan.grid,
                                strata::comm::pipeline_routes(strata::plan::chunk_stages(plan)));
  strata::ops::Context context(1);
  static_cast<void>(strata::train::train({.plan = plan,
                                          .groups = groups,
                                          .context = context,
                                          .train_data = data,
                                          .test_data = &test_data,
                                          .config_text = strata::config::config_text(plan.config),
                                          .log = log}));
}

int main(int argc, char** argv) try {
  strata::comm::MpiSession mpi(&argc, &argv);
  train(mpi, argc > 1 ? argv[1] : "runs/points");
  mpi.finalize();
} catch (const std::exception& error) {
  strata::print_error(error.what() + std::string("\n"));
  strata::comm::MpiSession::abort(1);
}
