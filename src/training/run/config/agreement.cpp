#include "training/run/config/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include <annulus/base/error.hpp>
#include <annulus/training/run/trainer.hpp>

#include "attention/comm/watchdog.hpp"
#include "attention/sequence/mask_terms.hpp"
#include "base/kokkos/execution/processor.hpp"
#include "training/linalg/matmul.hpp"
#include "training/run/config/config_table.hpp"
#include "training/run/together.hpp"

namespace annulus::training {

namespace {

constexpr std::string_view threads_key = "the threads of a rank";

constexpr std::string_view same_config = "give every rank the same configuration";
constexpr std::string_view same_hardware =
    "start the ranks on machines of one kind, or set parallel.mixed_hardware = true (docs/running.md tells "
    "what that costs)";

bool is_path(std::string_view key) {
  constexpr std::array<std::string_view, 6> paths = {"run.folder", "model.from",      "data.shards",
                                                     "data.sets",  "data.validation", "attention.cluster"};
  return std::ranges::find(paths, key) != paths.end();
}

/// The value as the configuration has it, but without the file of a block list.
std::string text_of(const Key& key, const Config& config) {
  if (std::string_view(key.name) == "attention.mask") {
    const detail::MaskTerms terms = detail::parse_mask_terms(config.attention.mask, key.name);
    if (terms.blocks) return fmt::format("'{}'", detail::outline(terms));
  }
  return value_text(key, config);
}

comm::Facts processor_facts(bool on_gpu, const Hooks& hooks) {
  if (hooks.hardware) return *hooks.hardware;
  comm::Facts facts;
  if (on_gpu) {
    facts.add("the GPU model", gpu_model(), same_hardware);
  } else {
    facts.add("the CPU's instruction sets", cpu_instruction_sets(), same_hardware);
    facts.add("the kernels of BLAS", linalg::host_blas_kernels(), same_hardware);
  }
  return facts;
}

comm::Facts kernel_facts(attention::Kernel kernel) {
  comm::Facts facts;
  facts.add("the kernel of attention that runs", attention::name_of(kernel), same_hardware);
  return facts;
}

}  // namespace

comm::Facts config_facts(const Config& config) {
  comm::Facts facts;
  for (const Key& key : config_table())
    if (!is_path(key.name)) facts.add(key.name, text_of(key, config), same_config);
  std::string sets;
  for (const auto& [name, path] : config.validation_shards()) sets += name + " ";
  facts.add("the sets of data.validation", sets, same_config);
  std::string weights;
  for (const Config::DataSet& set : config.data.sets)
    weights += fmt::format("{} ({}) ", set.name, set.weight);
  facts.add("the sets of data.sets and their weights", weights, same_config);
  facts.add("model.from", config.model_from.empty() ? "not given" : "given", same_config);
  facts.add("what run.device stands for", computes_on_gpu(config) ? "gpu" : "cpu", same_config);
  return facts;
}

comm::Facts data_facts(const data::TokenDataset& dataset, std::string_view key) {
  const data::TokenizerIdentity& t = dataset.tokenizer();
  const std::string same_data =
      fmt::format("give every rank the same shards ({}), whole and in one order", key);
  comm::Facts facts;
  facts.add("the tokenizer of the data", fmt::format("{} {} of {} ids", t.name, t.fingerprint, t.vocabulary),
            same_data);
  facts.add("the data",
            fmt::format("{} tokens in {} shards, fingerprint {:08x}", dataset.tokens(),
                        dataset.shards().size(), dataset.fingerprint()),
            same_data);
  return facts;
}

comm::Facts hardware_of(bool on_gpu, const Hooks& hooks, attention::Kernel kernel) {
  comm::Facts facts = processor_facts(on_gpu, hooks);
  facts.add(kernel_facts(kernel));
  return facts;
}

void agree_to_start(comm::Communicator& world, const Config& config, const DumpRequest& dump,
                    const Hooks& hooks) {
  // Every rank takes part in a dump.
  constexpr std::string_view remedy = "start every rank with the same arguments";
  comm::Facts facts = hooks.program;
  facts.add(config_facts(config));
  facts.add("--dump", dump.file.empty() ? "not given" : "given", remedy);
  facts.add("--dump-step", dump.step, remedy);
  if (!config.parallel.mixed_hardware) facts.add(processor_facts(computes_on_gpu(config), hooks));
  comm::require_agreement(world, facts);
}

AttentionInputs agree_on_inputs(comm::Communicator& world, const Config& config) {
  constexpr std::string_view remedy = "give every rank the same file";
  const comm::Watchdog::ActivityScope activity(
      world.watchdog(), "the start of the run, for which every rank reads the files of attention",
      config.file_stall_timeout());
  AttentionInputs inputs;
  together(world, [&] { inputs = read_attention_inputs(config); });
  comm::Facts facts;
  facts.add("the contents of attention.cluster", fmt::format("crc32:{:08x}", inputs.cluster_checksum),
            remedy);
  facts.add("the contents of the mask's block list",
            fmt::format("{:016x}", inputs.masks.front().blocks_fingerprint()), remedy);
  comm::require_agreement(world, facts);
  return inputs;
}

void agree_on_kernels(comm::Communicator& world, bool mixed_hardware, attention::Kernel kernel,
                      const Mask& mask) {
  comm::Facts facts;
  facts.add("the documents of the mask", fmt::format("{:016x}", mask.documents_fingerprint()),
            "give every rank the same shards (data.shards), whole and in one order");
  if (!mixed_hardware) facts.add(kernel_facts(kernel));
  comm::require_agreement(world, facts);
}

std::map<std::string, std::string> computed_with(comm::Communicator& world, bool on_gpu, const Hooks& hooks,
                                                 attention::Kernel kernel) {
  std::map<std::string, std::string> all;
  const comm::Facts hardware = hardware_of(on_gpu, hooks, kernel);
  for (const comm::Facts::Fact& fact : hardware.all()) all.emplace(fact.key, fact.value);
  if (on_gpu) return all;
  const auto mine = static_cast<std::int64_t>(HostExec().concurrency());
  std::vector<std::int64_t> threads(static_cast<std::size_t>(world.size()));
  world.all_gather(HostExec(), &mine, threads.data(), sizeof mine);
  std::map<std::int64_t, std::vector<int>> ranks;
  for (int rank = 0; rank < world.size(); ++rank)
    ranks[threads[static_cast<std::size_t>(rank)]].push_back(rank);
  std::string text;
  for (const auto& [count, of] : ranks)
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", count,
                        ranks.size() == 1 ? "" : " on " + comm::ranks_text(of));
  all.emplace(threads_key, text);
  return all;
}

std::vector<std::string> computed_with_notes(const std::map<std::string, std::string>& before,
                                             const std::map<std::string, std::string>& now) {
  std::vector<std::string> notes;
  for (const auto& [name, value] : now) {
    const auto found = before.find(name);
    if (found != before.end() && found->second != value)
      notes.push_back(
          fmt::format("{}: '{}' when the checkpoint was written, '{}' now: the run goes on, and its results "
                      "agree with those of an uninterrupted one to rounding, not bit for bit{}",
                      name, found->second, value,
                      name == threads_key && found->second.find(' ') == std::string::npos
                          ? fmt::format(" (set OMP_NUM_THREADS={} for these)", found->second)
                          : ""));
  }
  return notes;
}

}  // namespace annulus::training
