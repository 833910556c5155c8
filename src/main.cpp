#include "strata/app/app.hpp"

int main(int argc, char** argv) {
  return strata::app::run(argc, argv);
}
