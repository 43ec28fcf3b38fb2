#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "bench/kernels/case.hpp"
#include "options/checks.hpp"

namespace annulus::bench {

void KernelSizes::complete() {
  const auto positive = [](const char* name, std::int64_t value) {
    require(value >= 1 && value <= (std::int64_t{1} << 30), "{} is {}: give a number from 1 to 2^30", name,
            value);
  };
  if (tokens == 0) tokens = has_device ? 32768 : 1024;
  positive("--tokens", tokens);
  positive("--hidden", hidden);
  positive("--ffn", ffn);
  positive("--heads", heads);
  positive("--kv-heads", kv_heads);
  positive("--head-dim", head_dim);
  require(head_dim % 2 == 0, "--head-dim is {}: rotation takes pairs, give an even number", head_dim);
  options::check_matrix("--hidden and --ffn", hidden, ffn);
  options::check_matrix("--heads and --head-dim", heads, head_dim);
  options::check_matrix("--kv-heads and --head-dim", kv_heads, head_dim);
  options::check_matrix("--tokens and --hidden", tokens, hidden);
  options::check_matrix("--tokens and --ffn", tokens, 2 * ffn);
  options::check_matrix("--tokens, --heads, --kv-heads and --head-dim", tokens,
                        (heads + 2 * kv_heads) * head_dim);
}

}  // namespace annulus::bench
