#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/training/run/config.hpp>

#include "training/data/blend/blend.hpp"
#include "training/data/dataset.hpp"
#include "training/data/verify.hpp"

namespace annulus::training {

/// The token shards of data.shards as a stream, the same on every rank. The first rank of each node opens
/// them and hands their headers on to its node; a rank that names other paths reads for itself. From then on
/// ranks open the shards of which they want tokens. Collective. Throws Error naming key and file, and on all
/// ranks when they have different data.
std::shared_ptr<const data::TokenDataset> open_data(comm::Communicator& world, const Config& config);

/// What a run learns from: data.shards, or data.sets with their weights; as open_data, but with sequences as
/// data.packing says.
data::Blend open_training_data(comm::Communicator& world, const Config& config);

/// A set of data.validation.
struct ValidationSet {
  std::string name;
  std::shared_ptr<const data::TokenDataset> dataset;
  std::int64_t stride = 0;  ///< of data::Windows; 0: sequences side by side, as training reads them
};
/// Opens the sets, entries of one name joined, as open_data does. Their tokenizer must be `training`, that
/// of the data that the run learns from.
std::vector<ValidationSet> open_validation(comm::Communicator& world, const Config& config,
                                           const data::TokenizerIdentity& training);

/// The configuration with what the data decides filled in. Throws Error naming the key that does not fit.
Config complete(Config config, const data::TokenizerIdentity& tokenizer);

/// Document starts of a sequence that stands for the others: of a few, spread over the data, the one with the
/// median sum of squared lengths. Where attention.mask does not follow documents: one document.
std::vector<std::int64_t> typical_documents(const data::Blend& data, const Config& config);

/// Compares the shards with their checksums while a run goes on (data.verify). The ranks share them out.
class DataVerification {
 public:
  DataVerification(comm::Communicator& world, const data::Blend& data);

  /// This rank has found a damaged shard.
  bool found_damage() const { return !shards_.problem().empty(); }

  /// True when every rank has compared all its shards. Throws Error on all ranks where one has found a
  /// damaged shard, naming it and, as what may have learned from it, the optimizer steps `first` to `last`
  /// that this run has made. Collective.
  bool complete(std::int64_t first, std::int64_t last) const;

 private:
  comm::Communicator& world_;
  data::BackgroundVerification shards_;
};

}  // namespace annulus::training
