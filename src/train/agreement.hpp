#pragma once

#include <annulus/attention/local.hpp>
#include <annulus/comm/agreement.hpp>
#include <annulus/data/dataset.hpp>
#include <annulus/plan/plan.hpp>
#include <annulus/train/config.hpp>
#include <annulus/train/trainer.hpp>

/// What the ranks of a run must have alike (comm::require_agreement compares it), in the order in which it
/// becomes known.
namespace annulus::train {

/// Every key of the configuration but paths, which may lead to the same elsewhere on every machine; of the
/// cluster file that attention.schedule or attention.layout = 'auto' reads, its contents. Throws Error where
/// that file cannot be read.
comm::Facts config_facts(const Config& config);

/// Whether, and of which update, the tensors are to be written: every rank takes part in that.
comm::Facts dump_facts(const DumpRequest& dump);

/// On what this rank computes: replicas on other hardware need not be the same bits.
comm::Facts hardware_facts(const Config& config);

/// The shards, wherever they lie.
comm::Facts data_facts(const data::TokenDataset& dataset);

/// The kernel of local attention that runs here, a matter of hardware like hardware_facts.
comm::Facts kernel_facts(attention::Kernel kernel);

/// What the mask has read: block lists, document starts.
comm::Facts mask_facts(const Mask& mask);

}  // namespace annulus::train
