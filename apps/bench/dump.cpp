#include "bench/dump.hpp"

#include <span>
#include <string>

#include <annulus/base/version.hpp>
#include <annulus/io/hdf5.hpp>

namespace annulus::bench {

void write_dump(const std::filesystem::path& path, const AttentionOptions& options,
                const plan::Problem& problem, double scale,
                const std::map<plan::Tensor, GlobalTensor>& tensors) {
  io::write_hdf5_atomically(path, [&](io::File& file) {
    file.set_attribute("program", "annulus-bench attention");
    file.set_attribute("git_hash", git_hash());
    file.set_attribute("schedule", options.schedule);
    file.set_attribute("layout", problem.layout.to_string());
    file.set_attribute("mask", problem.mask.to_string());
    file.set_attribute("dtype", options.dtype);
    file.set_attribute("ranks", problem.ranks());
    file.set_attribute("tokens", problem.mask.tokens());
    file.set_attribute("heads", problem.heads);
    file.set_attribute("kv_heads", problem.kv_heads);
    file.set_attribute("head_dim", problem.head_dim);
    file.set_attribute("batch", problem.batch);
    file.set_attribute("seed", options.seed);
    file.set_attribute("scale", scale);
    for (const auto& [tensor, global] : tensors) {
      const auto extent = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
      io::Extents extents{extent(global.batch), extent(global.heads), extent(global.tokens)};
      if (!plan::is_row_statistic(tensor)) extents.push_back(extent(global.width));
      const std::string name(tensor == plan::Tensor::o ? "out" : plan::name_of(tensor));
      file.write<float>(name, global.values, extents);
    }
  });
}

}  // namespace annulus::bench
