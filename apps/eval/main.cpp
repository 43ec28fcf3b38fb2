#include "eval/program.hpp"

int main(int argc, char** argv) {
  return annulus::eval::run_program(argc, argv);
}
