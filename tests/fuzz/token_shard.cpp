// Token shards (docs/formats/token-shards.md), and with them everything that Annulus reads of HDF5.
#include "training/data/shard.hpp"

#include "memory_file.hpp"
#include "training/data/verify.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace annulus;
  const fuzz::MemoryFile file(data, size);
  fuzz::accepts(file.path(), [&] {
    const data::TokenShard shard = data::TokenShard::open(file.path());
    data::TokenHistogram histogram;
    fuzz::accepts(file.path(), [&] { data::count_tokens(shard, histogram); });
    data::verify_shard(shard);
    fuzz::expect(histogram.total() == shard.header().tokens, "all tokens of an intact shard");
  });
  return 0;
}
