// Cluster files (docs/formats/cluster.md).
#include <annulus/prediction/simulator/cluster.hpp>

#include "fuzz.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace annulus;
  simulator::Cluster cluster;
  if (!fuzz::accepts("input.toml",
                     [&] { cluster = simulator::parse_cluster(fuzz::text_of(data, size), "input.toml"); }))
    return 0;
  const std::string text = to_text(cluster);
  fuzz::expect(simulator::parse_cluster(text, "written") == cluster, "the same cluster from what was written",
               text);
  return 0;
}
