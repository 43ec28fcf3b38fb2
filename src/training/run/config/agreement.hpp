#pragma once

#include <map>
#include <string>
#include <vector>

#include <annulus/attention/kernels/local.hpp>
#include <annulus/attention/sequence/mask.hpp>
#include <annulus/training/run/config.hpp>
#include <annulus/training/run/trainer.hpp>

#include "attention/comm/agreement.hpp"
#include "training/data/dataset.hpp"
#include "training/run/config/attention_inputs.hpp"
#include "training/run/hooks.hpp"

/// What the ranks of a run must have alike, compared as soon as it is known (comm::require_agreement). What
/// is called agree… is collective and throws Error on all ranks.
namespace annulus::training {

/// Agrees, before anything else, on program, configuration, what is to be dumped and hardware.
void agree_to_start(comm::Communicator& world, const Config& config, const DumpRequest& dump,
                    const Hooks& hooks);

/// Reads the files of attention (read_attention_inputs), once for the whole run, and compares what they hold.
/// A file that one rank cannot read is an error of all.
AttentionInputs agree_on_inputs(comm::Communicator& world, const Config& config);

/// Agrees, once plans are made, on the documents of the first sequence and the kernel of local attention that
/// runs. The ranks of a context-parallel group have compared their plans then.
void agree_on_kernels(comm::Communicator& world, bool mixed_hardware, attention::Kernel kernel,
                      const Mask& mask);

/// Every key of the configuration but paths, which may lead to the same elsewhere on every machine.
comm::Facts config_facts(const Config& config);

/// The shards of `key`, wherever they lie.
comm::Facts data_facts(const data::TokenDataset& dataset, std::string_view key);

/// On what this rank computes, and with which kernel of local attention: replicas on other hardware need not
/// be the same bits.
comm::Facts hardware_of(bool on_gpu, const Hooks& hooks, attention::Kernel kernel);

/// hardware_of and, of a run on CPUs, the threads of the ranks, over which BLAS divides its sums: what a
/// checkpoint remembers (checkpoint::Progress::computed_with). Collective.
std::map<std::string, std::string> computed_with(comm::Communicator& world, bool on_gpu, const Hooks& hooks,
                                                 attention::Kernel kernel);

/// What to tell of a run that goes on with other ones; a line for each difference.
std::vector<std::string> computed_with_notes(const std::map<std::string, std::string>& before,
                                             const std::map<std::string, std::string>& now);

}  // namespace annulus::training
