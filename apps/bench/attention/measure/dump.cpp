#include "bench/attention/measure/dump.hpp"

namespace annulus::bench {

void describe_dump(io::FileWriter& file, const BenchCase& c, double scale, const Machinery& on) {
  const AttentionOptions& options = c.options;
  const plan::Problem& problem = c.problem;
  file.set_attribute("program", "annulus-bench attention");
  file.set_attribute("device", on.execution_space);
  file.set_attribute("schedule", options.schedule);
  file.set_attribute("layout", problem.layout.to_string());
  file.set_attribute("mask", problem.mask.to_string());
  if (c.sparsity) file.set_attribute("sparsity", c.sparsity->to_string());
  file.set_attribute("dtype", options.dtype);
  file.set_attribute("kernel", on.kernel);
  file.set_attribute("ranks", problem.ranks());
  file.set_attribute("tokens", problem.mask.tokens());
  file.set_attribute("heads", problem.heads);
  file.set_attribute("kv_heads", problem.kv_heads);
  file.set_attribute("head_dim", problem.head_dim);
  file.set_attribute("v_head_dim", problem.columns(plan::Tensor::v));
  file.set_attribute("batch", problem.batch);
  file.set_attribute("seed", options.seed);
  file.set_attribute("scale", scale);
}

}  // namespace annulus::bench
