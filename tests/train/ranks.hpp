#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <annulus/comm/loopback.hpp>
#include <annulus/train/trainer.hpp>

#include "support/error_text.hpp"
#include "train/hooks.hpp"

namespace annulus::train::test {

/// Trains on `ranks` ranks that are threads of one node, each with the configuration and hooks that `of_rank`
/// gives it; the error that each is told, "no error" where there is none.
inline std::vector<std::string> messages(int ranks,
                                         const std::function<std::pair<Config, Hooks>(int rank)>& of_rank,
                                         int ranks_per_node = 0) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  comm::run_loopback(
      Topology::uniform(ranks, ranks_per_node > 0 ? ranks_per_node : ranks), [&](comm::Communicator& world) {
        const auto [config, hooks] = of_rank(world.rank());
        texts[static_cast<std::size_t>(world.rank())] =
            error_text([&, &config = config, &hooks = hooks] { train(world, config, {}, {}, hooks); });
      });
  return texts;
}

}  // namespace annulus::train::test
