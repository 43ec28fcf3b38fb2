#include <fmt/format.h>

#include <cinttypes>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <annulus/base/version.hpp>

#include "bench/commands.hpp"
#include "bench/gemms/products.hpp"
#include "common/output/output_json.hpp"
#include "options/checks.hpp"
#include "options/shared.hpp"
#include "training/io/atomic.hpp"

namespace annulus::bench {

namespace {

struct MatmulOptions {
  std::vector<std::string> shapes;  ///< TOKENSxOUTxIN; empty: those of LLaMA's layers
  std::int64_t tokens = 8192;       ///< of the shapes that are chosen
  std::string dtype = "bf16";
  int repetitions = 10;
  std::string json;  ///< empty: none
};

using nlohmann::json;
using Exec = Kokkos::DefaultExecutionSpace;

LinearShape parse_shape(const std::string& text) {
  LinearShape shape;
  int read = 0;
  const int fields = std::sscanf(text.c_str(), "%" SCNd64 "x%" SCNd64 "x%" SCNd64 "%n", &shape.tokens,
                                 &shape.out, &shape.in, &read);
  require(fields == 3 && read == static_cast<int>(text.size()) && shape.tokens > 0 && shape.out > 0 &&
              shape.in > 0,
          "--shape {}: give three numbers, TOKENSxOUTxIN, such as 8192x4096x4096", text);
  return shape;
}

// QKV, attention's output, gate and up together, and down; of the 8B model and of one with 1B parameters.
std::vector<LinearShape> llama_shapes(std::int64_t tokens) {
  return {{tokens, 6144, 4096}, {tokens, 4096, 4096}, {tokens, 28672, 4096}, {tokens, 4096, 14336},
          {tokens, 3072, 2048}, {tokens, 2048, 2048}, {tokens, 16384, 2048}, {tokens, 2048, 8192}};
}

json to_json(const LinearShape& shape, const LinearTimes& times) {
  const auto product = [&](const measurement::Sample& sample) -> json {
    return {{"seconds", sample.median},
            {"seconds_min", sample.min},
            {"seconds_max", sample.max},
            {"tflops", shape.flops() / sample.median * 1e-12}};
  };
  return {{"tokens", shape.tokens}, {"out", shape.out},        {"in", shape.in},
          {"y", product(times.y)},  {"dx", product(times.dx)}, {"dw", product(times.dw)}};
}

/// Times the three GEMMs of a linear layer for every shape, on one rank.
int run_matmul(MatmulOptions& o, const comm::MpiEnvironment& mpi) {
  require(mpi.size() == 1, "matmul measures one rank, but there are {}: start it without mpirun", mpi.size());
  require(o.tokens >= 1, "--tokens is {}: give a number from 1 on", o.tokens);
  const DType dtype = parse_dtype(o.dtype, "--dtype");
  require(dtype == DType::f32 || dtype == DType::bf16, "--dtype is {}: GEMMs take f32 or bf16", o.dtype);
  std::vector<LinearShape> shapes;
  for (const std::string& text : o.shapes) shapes.push_back(parse_shape(text));
  if (shapes.empty()) shapes = llama_shapes(o.tokens);
  for (const auto& [tokens, out, in] : shapes) {
    options::check_matrix("--shape: TOKENS and OUT", tokens, out);
    options::check_matrix("--shape: TOKENS and IN", tokens, in);
    options::check_matrix("--shape: OUT and IN", out, in);
  }
  if (!o.json.empty()) io::require_writable(o.json);
  json report = {{"dtype", o.dtype},
                 {"repetitions", o.repetitions},
                 {"execution_space", Exec::name()},
                 {"threads", HostExec().concurrency()},
                 {"git_hash", git_hash()},
                 {"gemms", json::array()}};
  const auto alone = comm::make_null();
  const measurement::Sampling sampling{.repetitions = o.repetitions, .seconds = HUGE_VAL};
  fmt::print("{}, TFLOP/s on {}\n{:>8} {:>7} {:>7} {:>9} {:>9} {:>9}\n", o.dtype, Exec::name(), "tokens",
             "out", "in", "y", "dx", "dw");
  for (const LinearShape& shape : shapes) {
    json entry = to_json(shape, time_linear(*alone, sampling, dtype, shape));
    const auto rate = [&entry](const char* gemm) { return entry[gemm]["tflops"].get<double>(); };
    fmt::print("{:>8} {:>7} {:>7} {:>9.3f} {:>9.3f} {:>9.3f}\n", shape.tokens, shape.out, shape.in, rate("y"),
               rate("dx"), rate("dw"));
    report["gemms"].push_back(std::move(entry));
  }
  app::write_output(o.json, std::move(report));
  return 0;
}

}  // namespace

void add_matmul(CLI::App& app, Command& chosen) {
  auto [command, o] = add_command(
      app, chosen, "matmul", "Rates of the three GEMMs of a linear layer: y = x w', dx = dy w, dw += dy' x.",
      run_matmul);
  options::SharedOptions shared(command);
  command
      .add_option(
          "--shape", o.shapes,
          "Shapes TOKENSxOUTxIN: x is (tokens, in), w (out, in); default: the layers of LLaMA 1B and 8B")
      ->expected(1, -1);
  command.add_option("--tokens", o.tokens, "Tokens of the shapes that are taken without --shape");
  command.add_option("--dtype", o.dtype, "Type of x, w, y and dx: f32 or bf16; dw is f32");
  shared.add(options::Shared::repetitions, o.repetitions, " of each GEMM, after one that warms up");
  shared.add(options::Shared::json, o.json, ": the measurements");
}

}  // namespace annulus::bench
