#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include <annulus/training/data/tokenizer.hpp>

#include "training/run/state/initial_weights/weight_source.hpp"

namespace annulus::eval {

/// The weights that a user names: of the folder of a run its newest good checkpoint, else `model` itself, a
/// checkpoint or a folder in Hugging Face's format. Throws Error naming it as WeightSource does.
std::filesystem::path weights_folder(const std::filesystem::path& model);

/// How much of a checkpoint a rank reads when it opens it: rank 0 compares all of it with its checksums.
inline checkpoint::Checkpoint::Check check_of(int rank) {
  return rank == 0 ? checkpoint::Checkpoint::Check::whole : checkpoint::Checkpoint::Check::manifest;
}

/// Throws Error naming `key`, which has given shards packed with `tokenizer`, where the model has another
/// one: that which is kept with it, else that of the shards its run has learned from, as far as these are
/// there.
void require_tokenizer(const training::WeightSource& weights, const std::filesystem::path& folder,
                       const data::TokenizerIdentity& tokenizer, std::string_view key);

/// The tokenizer of a model: that of `shards` where they are given, else the tokenizer.model that is kept
/// with it, else that of the shards it has learned from. Throws Error, with what to do, where there is none
/// that this program can read, and where it has more ids than the model; warns in the log where it has fewer.
std::unique_ptr<const data::Tokenizer> tokenizer_of(const training::WeightSource& weights,
                                                    const std::filesystem::path& folder,
                                                    const std::filesystem::path& shards);

}  // namespace annulus::eval
