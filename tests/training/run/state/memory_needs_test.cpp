// Models that cannot fit are refused at the start, with what takes most and what to do about it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/attention/comm/loopback.hpp>

#include "attention/sparsity/table_memory.hpp"
#include "base/units.hpp"
#include "training/run/planner/memory_needs.hpp"
#include "training/run/planner/memory_planner.hpp"
#include "training/run/planner/plan_memory.hpp"
#include "training/run/planner/rehearsal.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

class MemoryNeeds : public TinyTest {
 protected:
  /// What a run on two ranks says where so many bytes are free for each.
  static std::string message(const Config& config, std::int64_t free) {
    Hooks hooks;
    (on_host ? hooks.host_memory : hooks.device_memory) = on_host ? 2 * free : free;
    return run_error(2, config, {}, hooks);
  }
  static std::int64_t predicted(const Config& config) { return predicted_peak(2, config); }

  /// Plans two ranks on GPUs.
  static MemoryPlanner planner_of(const Config& config, const AttentionInputs& inputs) {
    return MemoryPlanner(config, topology, resolve_attention(config, topology, inputs), true);
  }
  static MemoryPlanner planner_of(const Config& config) {
    return planner_of(config, read_attention_inputs(config));
  }
  /// What auto takes of planned GPUs, each with its own numbers: bytes of its arrays.
  static std::int64_t taken_of_gpu(const Config& config, const std::vector<Available>& of_rank) {
    std::vector<std::int64_t> bytes(2);
    comm::run_loopback(topology, [&](comm::Communicator& world) {
      const auto rank = static_cast<std::size_t>(world.rank());
      MemoryPlanner planner = planner_of(config);
      const MemoryChoices made = choose_memory(world, planner, simulator::default_cluster(), of_rank[rank]);
      for (int of = 0; of < 2; ++of)
        bytes[rank] = std::max(bytes[rank], planner.memory(made.chosen().memory, of).device.total);
    });
    EXPECT_EQ(bytes[0], bytes[1]);
    return bytes[0];
  }

  static inline const Topology topology = Topology::uniform(2, 2);
};

TEST_F(MemoryNeeds, TheStateOfTheModelNamesShards) {
  Config config =
      tiny_.config("run", {"train.steps=2", "train.micro_batches=2", "train.sequences_per_pass=2"});
  const model::ParameterMap map(config.model);  // 16 bytes a parameter
  const std::int64_t needed = predicted(config);
  ASSERT_GT(needed, 16 * map.size());
  const auto bytes = [&](std::int64_t of) { return bytes_text(of); };
  EXPECT_THAT(
      message(config, needed - 1),
      mentions(bytes(needed), "parameters " + bytes(4 * map.size()), "optimizer " + bytes(8 * map.size()),
               // On a GPU the workspace of cuBLAS is most of it.
               on_host ? "parallel.zero = 1, 2 or 3" : "spread the sequence over more GPUs"));
  EXPECT_FALSE(fs::exists(config.run.folder));  // nothing was begun
  EXPECT_EQ(message(config, needed), "no error");
}

TEST_F(MemoryNeeds, ALongSequenceNamesMoreRanks) {
  Config config = tiny_.config("run", {"data.sequence_length=5000"});
  EXPECT_THAT(message(config, 1'000'000), HasSubstr("spread the sequence over more"));
}

TEST_F(MemoryNeeds, RanksOfAMachineShareItsMemory) {
  if (!on_host) GTEST_SKIP() << "of the host";
  Config config = tiny_.config("run");
  EXPECT_THAT(message(config, 1000), HasSubstr(" for the 2 ranks of the machine, and 2000 bytes are free"));
}

// The fastest of what fits: everything kept where there is room, and less where there is not.
TEST_F(MemoryNeeds, AutoTakesWhatFits) {
  Config config = tiny_.config(
      "auto", {"model.layers=4", "data.sequence_length=2000", "train.steps=1", "train.warmup_steps=0"});
  const std::int64_t everything = predicted(with(config, {"memory.recompute=none"}));
  config.memory.recompute = {"auto"};
  const auto taken = [&](std::int64_t free) {
    fs::remove_all(config.run.folder);
    std::int64_t gpu = free;  // with what stays free
    while (!on_host && gpu - spare_gpu_bytes(config, gpu) < free) ++gpu;
    EXPECT_EQ(message(config, gpu), "no error");
    return log_of(config);
  };
  EXPECT_THAT(taken(everything), HasSubstr("memory.recompute = 'auto' took none: predicted"));
  EXPECT_THAT(taken(everything - 1),
              mentions("memory.recompute = 'auto' took ", "of what would be faster none (", " lacks "));
  // Between two policies: the last layers keep everything.
  Config some = with(config, {"memory.recompute=selective", "memory.layers_without_recompute=1"});
  EXPECT_THAT(taken(predicted(some)), HasSubstr(" but for the last "));
  EXPECT_THAT(message(config, 100'000),
              mentions("memory.recompute = 'auto': nothing fits", "the run does not fit"));
}

// Arrays get what libraries and the margin leave of a GPU, and the rank with the least decides.
TEST_F(MemoryNeeds, AutoCountsLibrariesAndTheMargin) {
  Config config =
      tiny_.config("gpu", {"model.layers=4", "data.sequence_length=2000", "memory.recompute=auto"});
  Config none = with(config, {"memory.recompute=none"});
  MemoryPlanner planner = planner_of(none);
  const std::int64_t most =
      std::max(planner.memory(none.memory, 0).device.total, planner.memory(none.memory, 1).device.total);
  Available enough{.gpu = most + 70'000, .libraries = 50'000, .spare = 20'000, .host = std::int64_t{1} << 40};
  EXPECT_EQ(enough.device(), most);
  EXPECT_EQ(taken_of_gpu(config, {enough, enough}), most);
  Available more_libraries = enough, more_spare = enough;
  ++more_libraries.libraries;
  ++more_spare.spare;
  EXPECT_LT(taken_of_gpu(config, {enough, more_libraries}), most);
  EXPECT_LT(taken_of_gpu(config, {more_spare, enough}), most);
}

// Time is that of typical documents, buffers are those of one document, which needs most.
TEST_F(MemoryNeeds, DocumentsOfTheDataShortenTheTimeAndLeaveTheMemory) {
  const Config config = tiny_.config(
      "gpu", {"data.sequence_length=65536", "attention.layout=zigzag", "attention.mask=documents"});
  AttentionInputs inputs = read_attention_inputs(config);
  MemoryPlanner one = planner_of(config, inputs);
  inputs.documents = {0, 20000, 30000, 50000};
  MemoryPlanner several = planner_of(config, inputs);
  const simulator::Cluster cluster = simulator::default_cluster();
  EXPECT_LT(several.time(config.memory, cluster).total(), one.time(config.memory, cluster).total());
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(several.memory(config.memory, rank).device.total, one.memory(config.memory, rank).device.total);
}

TEST_F(MemoryNeeds, TablesOfSelectionsCountOnGpus) {
  const Config config =
      tiny_.config("gpu", {"data.sequence_length=2048", "model.head_dim=64", "train.dtype=bf16",
                           "attention.sparsity=infllm-v2:block=64,top=2,window=64"});
  MemoryPlanner automatic = planner_of(with(config, {"attention.kernel=automatic"})),
                portable = planner_of(with(config, {"attention.kernel=portable"}));
  const auto plans = automatic.plans().make();
  for (int rank = 0; rank < 2; ++rank) {
    const auto workspace = [&](MemoryPlanner& of) {
      MemoryBytes most = of.memory(config.memory, rank).device.categories;
      return at(most, MemoryCategory::workspace);
    };
    const std::int64_t tables = sparsity::table_memory(
        sparsity::PatternOptions::parse(config.attention.sparsity), plans.front(), rank, {});
    EXPECT_GT(tables, 0);
    EXPECT_EQ(workspace(automatic), workspace(portable) + tables);
  }
}

// What later cuts may take: starts of documents, runs of rows, and pinned buffers of messages.
TEST_F(MemoryNeeds, TheWorstCutCounts) {
  constexpr std::int64_t tokens = 2048, sequences = 2;
  const Config config =
      tiny_.config("gpu", {fmt::format("data.sequence_length={}", tokens), "attention.layout=balanced",
                           "attention.schedule=all-gather", "train.micro_batches=2",
                           fmt::format("train.sequences_per_pass={}", sequences), "parallel.transport=nccl"});
  const Config packed = with(config, {"attention.mask=documents"}),
               two_masks = with(packed, {"model.layers=2", "model.pattern=window:30,0, causal"});
  const auto data = [&](const Config& of, int rank) {
    MemoryBytes most = planner_of(of).memory(of.memory, rank).device.categories;
    return at(most, MemoryCategory::data);
  };
  const auto pinned = [&](const Config& of, int rank) {
    MemoryBytes most = planner_of(of).memory(of.memory, rank).host.categories;
    return at(most, MemoryCategory::communication);
  };
  for (int rank = 0; rank < 2; ++rank) {
    constexpr std::int64_t starts = sequences * 8 * (tokens + 1), runs = sequences * 16 * (tokens + 2);
    EXPECT_EQ(data(two_masks, rank), data(packed, rank) + starts + runs);
    EXPECT_EQ(data(with(packed, {"attention.layout=zigzag"}), rank),
              data(with(config, {"attention.layout=zigzag"}), rank) + starts);
    const Config over_mpi = with(packed, {"parallel.transport=mpi"});
    MemoryPlanner planner = planner_of(over_mpi);
    EXPECT_EQ(pinned(packed, rank), 0);
    EXPECT_EQ(pinned(over_mpi, rank), executor::staging_memory(planner.plans().largest()[0][0], rank));
    EXPECT_EQ(pinned(with(over_mpi, {"attention.mask=causal"}), rank), 0);
  }
}

// Sequences of a pass that are alike are planned once.
TEST_F(MemoryNeeds, ManySequencesTakeNoLongerToPlan) {
  constexpr int many = 1 << 16;
  const Config config = tiny_.config(
      "gpu", {"attention.mask=documents", "attention.schedule=ring",
              fmt::format("train.micro_batches={}", many), fmt::format("train.sequences_per_pass={}", many)});
  MemoryPlanner planner = planner_of(config);
  const Kokkos::Timer timer;
  EXPECT_GT(planner.memory(config.memory, 1).device.total, 0);
  EXPECT_GT(planner.time(config.memory, simulator::default_cluster()).total(), 0);
  EXPECT_LT(timer.seconds(), 5) << "65,536 plans take minutes";
}

TEST_F(MemoryNeeds, WhatAutoLeavesFreeOfAGpu) {
  Config config = tiny_.config("gpu", {"model.hidden=4096", "model.heads=32", "model.kv_heads=32",
                                       "model.head_dim=128", "model.ffn=11008", "model.layers=32"});
  constexpr std::int64_t gpu = 150'000'000'000;
  EXPECT_EQ(spare_gpu_bytes(config, gpu), gpu / 100);
  // A layer's gradient comes and goes: 4 · 4096 · 4096 and 3 · 4096 · 11008 weights, 2 gains.
  config.parallel.zero = 3;
  const std::int64_t layer = 4 * (4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096);
  EXPECT_EQ(spare_gpu_bytes(config, gpu), gpu / 100 + layer);
  EXPECT_EQ(spare_gpu_bytes(config, gpu / 10), gpu / 10 * 3 / 100);
}

std::atomic<int> rehearsals = 0;  // of the ranks of a run

// A step of one layer before the run lets libraries take what they will: nothing of it stays, and no bit
// depends on it.
TEST_F(MemoryNeeds, TheRehearsalLeavesNoTrace) {
  struct Case {
    int ranks, zero, shard;
    const char *schedule, *layout, *mask;
  };
  for (const Case& of :
       {Case{2, 0, 0, "ring", "zigzag", "causal"}, Case{2, 1, 0, "ulysses", "contiguous", "documents"},
        Case{2, 2, 0, "burst", "striped", "window:20,0"}, Case{4, 3, 2, "auto", "auto", "causal"},
        Case{3, 3, 0, "all-gather", "block-striped:16", "documents+window:30,0"}}) {
    SCOPED_TRACE(of.schedule);
    const Config config = tiny_.config(
        std::string("plain ") + of.schedule,
        {"model.layers=2", "model.kv_heads=2", "train.steps=3", "memory.recompute=auto",
         fmt::format("parallel.zero={}", of.zero), fmt::format("parallel.shard={}", of.shard),
         fmt::format("attention.schedule={}", of.schedule), fmt::format("attention.layout={}", of.layout),
         fmt::format("attention.mask={}", of.mask)});
    run(of.ranks, config);
    const Config rehearsed = copy(config, "rehearsed");
    Hooks hooks;
    hooks.rehearse_on_cpu = true;
    rehearsals = 0;
    Kokkos::Tools::Experimental::set_push_region_callback(
        [](const char* name) { rehearsals += std::string_view(name) == "annulus::training::rehearse"; });
    run(of.ranks, rehearsed, {}, hooks);
    Kokkos::Tools::Experimental::set_push_region_callback(nullptr);
    EXPECT_EQ(rehearsals, of.ranks);
    expect_same_bits(config, rehearsed);

    const AttentionInputs inputs = read_attention_inputs(config);
    comm::run_loopback(Topology::uniform(of.ranks, of.ranks), [&](comm::Communicator& world) {
      const auto context = world.split(0, world.rank());
      const ResolvedAttention attention = resolve_attention(config, world.topology(), inputs);
      const auto held = [&] {
        world.barrier();
        const std::int64_t bytes = memory_use(on_host ? MemoryKind::host : MemoryKind::device).total_current;
        world.barrier();
        return bytes;
      };
      rehearse(world, *context, config, attention);
      const std::int64_t once = held();  // workspace of the communicators, which stays
      rehearse(world, *context, config, attention);
      EXPECT_EQ(held(), once);
    });
  }
}

TEST_F(MemoryNeeds, LibrariesTakeMoreOnMoreRanks) {
  const auto of = [](int ranks, int of_node) {
    return estimated_library_bytes(Topology::uniform(ranks, of_node));
  };
  EXPECT_EQ(of(1, 1), of(2, 2));
  EXPECT_LT(of(2, 2), of(4, 4));
  EXPECT_EQ(of(8, 8) - of(4, 4), 2 * (of(4, 4) - of(2, 2)));
  EXPECT_GT(of(16, 8), of(8, 8));                        // a partner on the other node
  EXPECT_EQ(of(16, 8) - of(8, 8), of(3, 3) - of(2, 2));  // and no more
}

TEST_F(MemoryNeeds, SizesAreReadWithTheirUnits) {
  EXPECT_EQ(parse_bytes("141GB", "--gpu-memory"), 141'000'000'000);
  EXPECT_EQ(parse_bytes("1.5 GiB", "--gpu-memory"), 1'610'612'736);
  EXPECT_EQ(parse_bytes("1234", "--gpu-memory"), 1234);
  for (const char* wrong : {"", "GB", "-1GB", "80 gigabytes", "0"})
    EXPECT_THAT(error_text([&] { parse_bytes(wrong, "--gpu-memory"); }),
                HasSubstr(std::string("--gpu-memory '") + wrong + "': give bytes"));
}

}  // namespace
}  // namespace annulus::training::test
