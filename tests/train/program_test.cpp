// annulus-train under mpirun, as its users run it and as machines treat it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include <annulus/checkpoint/reader.hpp>
#include <annulus/data/packer.hpp>
#include <annulus/io/atomic.hpp>
#include <annulus/io/json_lines.hpp>

#include "support/error_text.hpp"
#include "support/full_disk.hpp"
#include "train/job.hpp"

namespace annulus::train {
namespace {

namespace fs = std::filesystem;
using annulus::train::test::Job;
using annulus::train::test::rank_process;
using annulus::train::test::wait_until;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class Program : public testing::Test {
 protected:
  void SetUp() override {
    data::PackOptions options;
    options.inputs = {ANNULUS_FIXTURE_TEXT};
    options.output = folder_.path() / "shards";
    options.tokenizer = data::make_byte_tokenizer();
    data::pack(options);
    folder_.write("run.toml",
                  "[model]\nlayers = 1\nhidden = 32\nheads = 2\nkv_heads = 1\nhead_dim = 16\nffn = 40\n"
                  "[data]\nsequence_length = 64\n[train]\nsteps = 12\nwarmup_steps = 2\n"
                  "[checkpoint]\nevery = 5\nkeep = 3\n");
  }

  std::string command(int ranks, const std::string& run, const std::string& arguments = "") const {
    return std::string(ANNULUS_MPIRUN) + " " + std::to_string(ranks) + " " + arguments_of(run, arguments);
  }
  std::string arguments_of(const std::string& run, const std::string& arguments) const {
    return ANNULUS_TRAIN_PROGRAM " " + folder_.file("run.toml") + " --set run.folder=" + path(run).string() +
           " --set data.shards=" + folder_.file("shards") + " " + arguments;
  }
  Job start(const std::string& command) const { return Job("exec " + command, folder_.file("output")); }
  std::string output() const { return io::read_text(folder_.file("output")); }

  // Runs to the end; status and output.
  int run(const std::string& command) const {
    Job job("exec " + command, folder_.file("output"));
    return job.wait();
  }
  // The run fails with status 1 and one line of Annulus, which is given back.
  std::string failure(const std::string& command) const {
    EXPECT_EQ(run(command), 1) << output();
    std::istringstream lines(output());
    std::string found;
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("annulus: ")) found += line + "\n";
    EXPECT_EQ(std::count(found.begin(), found.end(), '\n'), 1) << output();
    return found;
  }

  fs::path path(const std::string& run) const { return folder_.path() / run; }
  fs::path checkpoint(const std::string& run, int step) const {
    return path(run) / "checkpoints" / fmt::format("step-{:08}", step);
  }
  std::vector<std::string> files(const fs::path& where) const {
    std::vector<std::string> names;
    if (fs::exists(where))
      for (const auto& entry : fs::directory_iterator(where)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  std::vector<double> losses(const std::string& run) const {
    std::vector<double> losses;
    io::read_json_lines(path(run) / "metrics.jsonl", [&](const nlohmann::json& record, std::int64_t line) {
      EXPECT_EQ(record.at("step"), line);
      losses.push_back(record.at("loss"));
    });
    return losses;
  }
  std::int64_t records(const std::string& run) const {
    std::ifstream file(path(run) / "metrics.jsonl");
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  }
  nlohmann::json summary(const std::string& run) const {
    return nlohmann::json::parse(io::read_text(path(run) / "summary.json"));
  }
  // Everything in a checkpoint but the configuration, which names the folder.
  std::map<std::string, std::vector<float>> arrays(const fs::path& file) const {
    std::map<std::string, std::vector<float>> arrays;
    const checkpoint::Checkpoint checkpoint(file);
    for (const checkpoint::Buffer buffer : checkpoint::buffers)
      for (const checkpoint::Tensor& tensor : checkpoint.tensors()) {
        auto& values = arrays[std::string(checkpoint::name_of(buffer)) + "/" + tensor.name];
        checkpoint.read(buffer, tensor.name, 0, tensor.elements(),
                        [&](std::int64_t, std::span<const float> more) {
                          values.insert(values.end(), more.begin(), more.end());
                        });
      }
    return arrays;
  }

  const annulus::test::TemporaryFolder folder_;
};

// Steps of runs that are to be interrupted: more than can be made before the signal comes.
constexpr const char* long_run = "--set train.steps=100000 --set checkpoint.every=0";

// Who gets which signal: a rank, or −1 for mpirun, which hands SIGUSR1 on.
class Signal : public Program, public testing::WithParamInterface<std::tuple<int, int>> {};

TEST_P(Signal, SavesAndEndsAllAndTheRunGoesOnBitForBit) {
  const auto [number, who] = GetParam();
  Job job = start(command(2, "run", long_run));
  ASSERT_TRUE(wait_until([&] { return records("run") > 3; })) << output();
  const auto begin = std::chrono::steady_clock::now();
  if (who < 0) {
    job.signal(number);
  } else {
    const pid_t process = rank_process(path("run").string(), who);
    ASSERT_GT(process, 0);
    ::kill(process, number);
  }
  EXPECT_EQ(job.wait(20), 0) << output();
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 10);
  EXPECT_THAT(output(), HasSubstr(fmt::format("stopped by {} after optimizer step",
                                              number == SIGTERM ? "SIGTERM" : "SIGUSR1")));
  EXPECT_EQ(summary("run").at("finished"), false);
  const int stopped = summary("run").at("last_step");
  EXPECT_EQ(records("run"), stopped);
  EXPECT_THAT(files(path("run") / "checkpoints"),
              ElementsAre(checkpoint("run", stopped).filename().string()));

  // On to a common end, beside a run of the same configuration that was left alone. The length of the cosine
  // is the same in all, so the end comes by a step at which both save, and a signal cannot be aimed: the
  // uninterrupted run is compared where the resumed one stops.
  const int end = stopped + 4;
  const std::string same =
      fmt::format("--set train.steps=100000 --set checkpoint.every={} --set checkpoint.keep=1000", end);
  for (const char* name : {"run", "whole"}) {
    Job on = start(command(2, name, same));
    ASSERT_TRUE(wait_until([&] { return fs::exists(checkpoint(name, end)); })) << output();
    ::kill(rank_process(path(name).string(), 0), SIGTERM);
    EXPECT_EQ(on.wait(20), 0) << output();
  }
  EXPECT_EQ(arrays(checkpoint("run", end)), arrays(checkpoint("whole", end)));
  auto resumed = losses("run"), whole = losses("whole");
  ASSERT_GE(resumed.size(), static_cast<std::size_t>(end));
  ASSERT_GE(whole.size(), static_cast<std::size_t>(end));
  resumed.resize(static_cast<std::size_t>(end));
  whole.resize(static_cast<std::size_t>(end));
  EXPECT_EQ(resumed, whole);
}

INSTANTIATE_TEST_SUITE_P(
    Program, Signal, testing::Values(std::tuple(SIGTERM, 1), std::tuple(SIGUSR1, 0), std::tuple(SIGUSR1, -1)),
    [](const auto& info) {
      return std::string(std::get<0>(info.param) == SIGTERM ? "Term" : "Usr1") +
             (std::get<1>(info.param) < 0 ? "Mpirun" : "Rank" + std::to_string(std::get<1>(info.param)));
    });

TEST_F(Program, TrainsOnMoreRanksThanCoresAndSumsUp) {
  EXPECT_EQ(run(command(5, "run", "--summary")), 0) << output();
  EXPECT_THAT(output(),
              mentions("step 12/12", "what to try next", "unigram entropy", checkpoint("run", 12).string()));
  EXPECT_THAT(files(path("run")), ElementsAre("checkpoints", "config.toml", "memory.json", "metrics.jsonl",
                                              "run.lock", "summary.json", "train.log"));
  EXPECT_THAT(files(path("run") / "checkpoints"),
              ElementsAre("step-00000005", "step-00000010", "step-00000012"));
  EXPECT_EQ(summary("run").at("finished"), true);
  EXPECT_EQ(summary("run").at("ranks"), 5);
  // The same command again: nothing to do, nothing lost.
  EXPECT_EQ(run(command(5, "run", "--summary")), 0) << output();
  EXPECT_THAT(output(),
              mentions("nothing to do: 12 of train.steps = 12 optimizer steps are done", "none: 12 of 12"));
  EXPECT_EQ(summary("run").at("finished"), true);
  EXPECT_TRUE(summary("run").at("last_loss").is_null());
  EXPECT_EQ(records("run"), 12);
}

// A run keeps the curve of the learning rate that it began with, which has ended by then.
TEST_F(Program, TheTipToTrainOnTakesTheLearningRateOffItsMinimum) {
  ASSERT_EQ(run(command(2, "run", "--summary")), 0) << output();
  const std::string text = output(), title = "train on, twice as long\n";
  const std::size_t at = text.find(title);
  ASSERT_NE(at, text.npos) << text;
  const std::size_t begin = at + title.size();
  ASSERT_EQ(run(text.substr(begin, text.find('\n', begin) - begin)), 0) << output();
  std::vector<double> rates;
  io::read_json_lines(path("run") / "metrics.jsonl",
                      [&](const nlohmann::json& record, std::int64_t) { rates.push_back(record.at("lr")); });
  ASSERT_EQ(rates.size(), 24U);
  EXPECT_DOUBLE_EQ(rates[11], rates[23]);  // train.min_lr, at the end of both
  EXPECT_GT(rates[12], 2 * rates[11]);
}

TEST_F(Program, TrainsInBfloat16AndSaysWhere) {
  EXPECT_EQ(
      run(command(2, "run", "--set run.device=cpu --set train.dtype=bf16 --set run.peak_tflops=1 --summary")),
      0)
      << output();
  EXPECT_THAT(output(), mentions("each rank computes on", "in bf16, attention kernel host_simd", "MFU",
                                 "TFLOP/s per rank"));
  EXPECT_THAT(summary("run").at("device").get<std::string>(), HasSubstr("bf16"));
  EXPECT_THAT(summary("run").at("transport").get<std::string>(), HasSubstr("mpi"));
  EXPECT_GT(summary("run").at("tflops"), 0.0);
}

TEST_F(Program, RunsWithoutMpirunAndPrintsItsConfiguration) {
  EXPECT_EQ(run(arguments_of("run", "--set train.steps=2")), 0) << output();
  EXPECT_THAT(output(), testing::ContainsRegex(
                            "saved .*step-00000002 \\([0-9.]+ kB in [0-9.]+ s, [0-9.]+ [kMG]B/s; training "));
  EXPECT_EQ(run(arguments_of("run", "--print-config")), 0);
  EXPECT_THAT(output(), mentions("hidden = 32  # ", "[checkpoint]"));
  EXPECT_EQ(run(ANNULUS_TRAIN_PROGRAM " --help"), 0);
  EXPECT_THAT(output(), HasSubstr("Exit status: 0"));
  EXPECT_THAT(failure(ANNULUS_TRAIN_PROGRAM), HasSubstr("no configuration was given"));
  EXPECT_THAT(failure(ANNULUS_TRAIN_PROGRAM " /none/such.toml"), HasSubstr("/none/such.toml"));
}

TEST_F(Program, KeysThatAreGivenAsOptionsAreNamed) {
  const auto said = [&](const std::string& arguments) {
    EXPECT_EQ(run(arguments_of("run", arguments)), 1);
    return output();
  };
  EXPECT_THAT(said("--learning-rate 3e-4"), HasSubstr("--learning-rate: did you mean --set train.lr=VALUE"));
  EXPECT_THAT(said("--batch-size=8"),
              HasSubstr("--batch-size: did you mean --set train.micro_batches=VALUE"));
  EXPECT_THAT(said("--seq-len 128"), HasSubstr("--seq-len: did you mean --set data.sequence_length=VALUE"));
  EXPECT_THAT(said("--resme auto"), HasSubstr("--resme: did you mean --resume?"));
  EXPECT_THAT(said("--utterly-other"), HasSubstr("--set section.key=value"));
  // Several keys behind one --set, and the configuration behind them.
  EXPECT_EQ(
      run(arguments_of("run", "--print-config --set train.steps=7 'train.lr = 0.5' train.warmup_steps=3")), 0)
      << output();
  EXPECT_THAT(output(),
              AllOf(HasSubstr("\nsteps = 7 "), HasSubstr("\nlr = 0.5 "), HasSubstr("\nwarmup_steps = 3 ")));
  EXPECT_EQ(run(ANNULUS_TRAIN_PROGRAM " --print-config --set train.steps=7 train.lr=0.5 " +
                folder_.file("run.toml")),
            0)
      << output();
  EXPECT_THAT(output(),
              AllOf(HasSubstr("\nsteps = 7 "), HasSubstr("\nlr = 0.5 "), HasSubstr("hidden = 32 ")));
}

TEST_F(Program, WhatIsWrongIsSaidOnceWithTheRemedy) {
  EXPECT_THAT(failure(command(3, "run", "--set parallel.context=2")),
              mentions("rank 0: parallel.context = 2", "3 ranks"));
  EXPECT_THAT(failure(command(2, "run", "--set train.step=3")), HasSubstr("did you mean 'train.steps'"));
  EXPECT_THAT(failure(command(2, "run", "--set parallel.ranks_per_node=5")), HasSubstr("5 ranks per node"));
  EXPECT_THAT(failure(command(2, "run", "--set run.device=cpu --set parallel.transport=nccl")),
              mentions("parallel.transport = 'nccl'", "run.device = 'cpu'"));
  EXPECT_THAT(failure(command(2, "run", "--set parallel.transport=tcp")),
              HasSubstr("parallel.transport = 'tcp'"));
  EXPECT_THAT(failure(command(2, "run", "--set data.sequence_length=1000000")),
              HasSubstr("longer than the data"));
  EXPECT_THAT(failure(command(2, "run", "--set data.shards=" + folder_.file("none"))),
              AllOf(HasSubstr("data.shards: "), HasSubstr(folder_.file("none"))));
  EXPECT_THAT(failure(command(2, "run", "--set data.shards=none")),
              AllOf(HasSubstr("data.shards: "), HasSubstr("'none'"), HasSubstr("--set data.shards=PATH"),
                    HasSubstr(fs::current_path().string())));
  EXPECT_FALSE(fs::exists(path("run")));

  const std::string shard = folder_.file("shards/tokens-000000.h5");
  const std::string bytes = io::read_text(shard);
  folder_.write("shards/tokens-000000.h5", bytes.substr(0, bytes.size() / 2));
  EXPECT_THAT(failure(command(2, "run")), mentions(shard, "truncated"));
  folder_.write("shards/tokens-000000.h5", bytes);

  folder_.write("occupied", "");
  for (const std::string& where : {folder_.file("occupied"), std::string("/proc/annulus")})
    EXPECT_THAT(failure(command(2, "run", "--set run.folder=" + where)),
                HasSubstr("run.folder = '" + where + "'"));
}

TEST_F(Program, ADamagedShardEndsTheRunWhileItTrains) {
  ASSERT_EQ(run(command(2, "run")), 0) << output();
  const auto before = files(path("run") / "checkpoints");
  const std::string shard = folder_.file("shards/tokens-000000.h5");
  std::string bytes = io::read_text(shard);
  bytes.at(bytes.find(std::string("t\0h\0e\0", 6))) = 'T';  // ids have 16 bits
  folder_.write("shards/tokens-000000.h5", bytes);
  EXPECT_THAT(failure(command(2, "run", long_run)),
              mentions("rank 0: '" + shard + "': the checksum of the contents is ", "the shard is damaged",
                       "Optimizer steps 13 to "));
  EXPECT_EQ(files(path("run") / "checkpoints"), before);
}

// Ranks 0 and 2 beside rank 1, which has arguments of its own.
TEST_F(Program, RanksThatWereStartedDifferentlyEndTogetherInOneLine) {
  data::PackOptions options;
  options.inputs = {ANNULUS_FIXTURE_TEXT};
  options.output = folder_.path() / "other";
  options.shard_tokens = 3000;
  options.tokenizer = data::make_byte_tokenizer();
  data::pack(options);
  const auto mixed = [&](const std::string& other) {
    const auto begin = std::chrono::steady_clock::now();
    const std::string line = failure(command(1, "run") + " : -n 1 " + arguments_of("run", other) +
                                     " : -n 1 " + arguments_of("run", ""));
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 20);
    return line;
  };
  EXPECT_EQ(
      mixed("--set train.lr=0.01"),
      "annulus: rank 0: ranks disagree about train.lr: 0.01 on rank 1, 0.0003 on ranks 0, 2; give every rank "
      "the same configuration\n");
  EXPECT_THAT(mixed("--set data.shards=" + folder_.file("other")),
              mentions("rank 0: ranks disagree about the data: ", " on rank 1, ",
                       " on ranks 0, 2; give every rank the same shards"));
  EXPECT_THAT(mixed("--set parallel.ranks_per_node=1"),
              HasSubstr("ranks disagree about parallel.ranks_per_node: 1 on rank 1, 0 on ranks 0, 2; "));
  EXPECT_FALSE(fs::exists(path("run")));
  // And when the run goes on.
  EXPECT_EQ(run(command(3, "run")), 0) << output();
  EXPECT_THAT(
      mixed("--set attention.mask=window:9,0"),
      HasSubstr("ranks disagree about attention.mask: 'window:9,0' on rank 1, 'causal' on ranks 0, 2; "));
  EXPECT_EQ(records("run"), 12);
}

TEST_F(Program, ALossThatIsNotFiniteEndsTheRun) {
  EXPECT_THAT(
      failure(command(2, "run", "--set train.lr=1e30 --set train.warmup_steps=0 --set checkpoint.every=1")),
      mentions("step 2 is not finite", "rank 0", "--resume FILE"));
  EXPECT_THAT(files(path("run") / "checkpoints"), ElementsAre("step-00000001"));
  EXPECT_EQ(records("run"), 1);
}

TEST_F(Program, DamagedCheckpointsArePassedOverOrRefused) {
  ASSERT_EQ(run(command(2, "run")), 0) << output();
  const auto cut = [&](int step) {
    const fs::path part = checkpoint("run", step) / "part-00001-of-00002.safetensors";
    fs::resize_file(part, fs::file_size(part) / 3);
  };
  cut(12);
  EXPECT_EQ(run(command(2, "run")), 0) << output();
  EXPECT_THAT(output(),
              mentions("warning", checkpoint("run", 12).string(), "resumed after optimizer step 10"));
  cut(12);
  EXPECT_THAT(failure(command(2, "run", "--resume " + checkpoint("run", 12).string())),
              mentions(checkpoint("run", 12).string(), "truncated"));
  for (const int step : {5, 10}) cut(step);
  EXPECT_THAT(failure(command(2, "run")), HasSubstr("none of the 3 checkpoints"));
}

TEST_F(Program, AFullDiskCostsCheckpointsAndTheStatusNotTheRun) {
  // Files end at 10 MB, parts of checkpoints are larger.
  const std::string large = "--set model.hidden=512 --set model.ffn=1024";
  EXPECT_EQ(run("bash -c 'ulimit -f 10000; exec " + command(2, "run", large) + "'"), 2) << output();
  EXPECT_THAT(output(), mentions("the checkpoint of optimizer step 5 was not saved, training goes on",
                                 "step 12/12", "could not be saved"));
  EXPECT_THAT(files(path("run") / "checkpoints"), IsEmpty());  // no temporary file either
  EXPECT_EQ(records("run"), 12);
  EXPECT_EQ(summary("run").at("failed_saves"), 3);
  EXPECT_EQ(summary("run").at("last_save_failed"), true);
  // With room again the same command ends well.
  EXPECT_EQ(run(command(2, "run", large)), 0) << output();
  EXPECT_EQ(summary("run").at("finished"), true);
}

TEST_F(Program, AFullFileSystemCostsNoMore) {
  const annulus::test::SmallFileSystem disk(200 * 1024);
  if (!disk.mounted()) GTEST_SKIP() << "mounting a small file system needs root";
  // There is room for some checkpoints, not for all.
  EXPECT_EQ(run(command(2, "run",
                        "--set run.folder=" + disk.path().string() +
                            "/run --set checkpoint.every=1 "
                            "--set checkpoint.keep=100")),
            2)
      << output();
  EXPECT_THAT(output(), mentions("was not saved, training goes on", "step 12/12"));
  for (const std::string& name : files(disk.path() / "run" / "checkpoints"))
    EXPECT_THAT(name, testing::MatchesRegex("step-[0-9]+"));
}

TEST_F(Program, ARankThatDiesEndsAll) {
  Job job = start(command(3, "run", long_run));
  ASSERT_TRUE(wait_until([&] { return records("run") > 1; })) << output();
  ::kill(rank_process(path("run").string(), 2), SIGKILL);
  const auto begin = std::chrono::steady_clock::now();
  const int status = job.wait(30);
  EXPECT_NE(status, 0);
  EXPECT_NE(status, -1) << "still running: " << output();
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 20);
  EXPECT_LT(rank_process(path("run").string(), 0), 0);
}

TEST_F(Program, ARankThatDiesInAShardedStepEndsAllAndLosesNothing) {
  const std::string sharded =
      "--set parallel.zero=3 --set model.hidden=96 --set model.ffn=256 "
      "--set checkpoint.keep=1000 --set train.schedule_steps=100000";
  Job job = start(command(3, "run", sharded + " --set train.steps=100000 --set checkpoint.every=4"));
  ASSERT_TRUE(wait_until([&] { return records("run") > 9; })) << output();
  ::kill(rank_process(path("run").string(), 1), SIGKILL);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_NE(job.wait(30), -1) << "still running: " << output();
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 20);
  EXPECT_LT(rank_process(path("run").string(), 0), 0);
  // From its last checkpoint the run goes on, to what a run comes to that nothing happened to.
  const std::int64_t last = records("run"), end = last + 4;
  const std::string to_the_end = sharded + fmt::format(" --set train.steps={} --set checkpoint.every=0", end);
  EXPECT_EQ(run(command(3, "run", to_the_end)), 0) << output();
  EXPECT_THAT(output(), HasSubstr("resumed after optimizer step "));
  EXPECT_EQ(run(command(3, "whole", to_the_end)), 0) << output();
  EXPECT_EQ(losses("run"), losses("whole"));
  EXPECT_EQ(arrays(checkpoint("run", static_cast<int>(end))),
            arrays(checkpoint("whole", static_cast<int>(end))));
}

// Gathers and sums in two stages over MPI; and sums in MPI's own order, which all ranks see alike.
TEST_F(Program, NodesChangeNoBitAndNativeSumsAgreeUnderEveryStage) {
  const auto train = [&](const std::string& name, int zero, const std::string& more) {
    EXPECT_EQ(run(command(4, name,
                          fmt::format("--set parallel.zero={} --set model.hidden=96 --set model.ffn=256 "
                                      "--set train.steps=3 --set train.epsilon=0.001 "
                                      "--set train.check_replicas=1 {}",
                                      zero, more))),
              0)
        << output();
    return arrays(checkpoint(name, 3));
  };
  const auto whole = train("whole", 0, "");
  EXPECT_EQ(train("nodes-0", 0, "--set parallel.ranks_per_node=2"), whole);
  EXPECT_EQ(train("nodes-3", 3, "--set parallel.ranks_per_node=2"), whole);
  for (const int zero : {0, 1, 2, 3}) {
    const auto native = train(
        fmt::format("native-{}", zero), zero,
        "--set parallel.sums=native" + std::string(zero % 2 == 0 ? "" : " --set parallel.ranks_per_node=2"));
    double squares = 0, differences = 0;
    for (const auto& [name, values] : whole) {
      if (!name.starts_with("parameters/")) continue;
      for (std::size_t i = 0; i < values.size(); ++i) {
        squares += std::pow(double(values[i]), 2);
        differences += std::pow(double(values[i]) - native.at(name)[i], 2);
      }
    }
    EXPECT_GT(squares, 0);
    EXPECT_LT(std::sqrt(differences / squares), 2e-6) << zero;
  }
  EXPECT_THAT(failure(command(2, "run", "--set parallel.sums=tree")),
              HasSubstr("parallel.sums = 'tree' is unknown; known are rank-order and native"));
}

TEST_F(Program, ATerminalThatIsGoneAndALimitOfProcessorTimeSave) {
  for (const auto& [number, name] : {std::pair(SIGHUP, "SIGHUP"), std::pair(SIGXCPU, "SIGXCPU")}) {
    const auto before = std::signal(number, SIG_DFL);  // whatever this test was started by
    Job job = start(arguments_of(name, long_run));
    std::signal(number, before);
    ASSERT_TRUE(wait_until([&] { return records(name) > 1; })) << output();
    job.signal(number);
    EXPECT_EQ(job.wait(20), 0) << output();
    EXPECT_THAT(output(), HasSubstr(fmt::format("stopped by {} after optimizer step", name)));
    EXPECT_EQ(files(path(name) / "checkpoints").size(), 1u);
  }
}

TEST_F(Program, WhatIsIgnoredAtTheStartStaysIgnored) {
  Job job("trap '' HUP; exec " + arguments_of("run", long_run), folder_.file("output"));  // as nohup does
  ASSERT_TRUE(wait_until([&] { return records("run") > 1; })) << output();
  job.signal(SIGHUP);
  const std::int64_t then = records("run");
  EXPECT_TRUE(wait_until([&] { return records("run") > then + 3; })) << output();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(20), 0) << output();
  EXPECT_THAT(output(), HasSubstr("stopped by SIGTERM"));
}

TEST_F(Program, AReaderOfTheLogThatGoesAwayEndsNothing) {
  const std::string reader = " 2> >(head -n 1 >" + folder_.file("first") + ")";
  EXPECT_EQ(run("bash -c '" + arguments_of("run", "") + reader + "'"), 0);
  EXPECT_EQ(records("run"), 12);
  EXPECT_EQ(summary("run").at("finished"), true);
  const std::string first = io::read_text(folder_.file("first"));
  EXPECT_EQ(std::count(first.begin(), first.end(), '\n'), 1);
}

TEST_F(Program, OutputThatCannotBeWrittenIsAnError) {
  EXPECT_THAT(failure("bash -c '" + arguments_of("run", "--print-config") + " >/dev/full'"),
              HasSubstr("standard output could not be written"));
  // What a run prints comes after all that it saves. Closed streams give their numbers to no file of the run.
  for (const auto& [name, where] : {std::pair("full", " >/dev/full"), std::pair("closed", " >&- <&-")}) {
    EXPECT_THAT(failure("bash -c '" + arguments_of(name, "--summary") + where + "'"),
                HasSubstr("standard output could not be written"));
    EXPECT_EQ(summary(name).at("finished"), true);
    EXPECT_EQ(records(name), 12);
    EXPECT_EQ(arrays(checkpoint(name, 12)).size(), arrays(checkpoint(name, 10)).size());
  }
  EXPECT_EQ(run("bash -c '" + arguments_of("streams", "") + " <&- >&- 2>&-'"), 0);
  EXPECT_EQ(records("streams"), 12);
}

TEST_F(Program, OneRankWithOtherArgumentsEndsAllWithItsMessage) {
  const auto mixed = [&](const std::string& other) {
    const auto begin = std::chrono::steady_clock::now();
    const std::string line = failure(command(1, "run") + " : -n 1 " + arguments_of("run", other));
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 20);
    return line;
  };
  EXPECT_THAT(mixed("--nonsense"), mentions("--nonsense on rank 1", "on rank 0; start every rank"));
  EXPECT_THAT(mixed("--version"), HasSubstr("the arguments: --version on rank 1"));
  EXPECT_THAT(mixed("--print-config"), HasSubstr("--print-config: given on rank 1, not given on rank 0"));
  EXPECT_FALSE(fs::exists(path("run")));
  // The same on all ranks is told once, as without mpirun.
  EXPECT_EQ(run(command(2, "run", "--nonsense")), 1);
  EXPECT_THAT(output(), AllOf(HasSubstr("--nonsense"), Not(HasSubstr("ranks disagree"))));
}

TEST_F(Program, ProcessesOfALauncherThatMpiDoesNotKnowAreRefused) {
  const auto by = [&](const std::string& variables) {
    return "env " + variables + " " + arguments_of("run", "");
  };
  EXPECT_THAT(failure(by("PMI_SIZE=2 PMI_RANK=0 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=0")),
              mentions("rank 0: mpiexec of MPICH or Intel MPI has started several processes (PMI_SIZE=2)",
                       "Open MPI", "ANNULUS_ALONE=1"));
  EXPECT_THAT(failure(by("SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=0")),
              HasSubstr("SLURM_STEP_NUM_TASKS=3"));
  EXPECT_THAT(failure(by("PMIX_RANK=1")), HasSubstr("PMIX_RANK=1"));
  EXPECT_EQ(run(by("PMI_SIZE=2 PMI_RANK=1")), 1);  // rank 0 has said it
  EXPECT_THAT(output(), Not(HasSubstr("annulus: ")));
  EXPECT_FALSE(fs::exists(path("run")));
  EXPECT_EQ(run(by("PMI_SIZE=2 PMI_RANK=0 ANNULUS_ALONE=1")), 0) << output();
  // Answers need no ranks: the first gives them.
  for (const auto& [question, answer] :
       {std::pair("--help", "Exit status: 0"), std::pair("--version", "annulus-train "),
        std::pair("--print-config", "[checkpoint]"),
        std::pair("--set model.vocabulary=257 --plan-memory", "predicted, not measured")}) {
    const std::string asking = arguments_of("asked", question);
    EXPECT_EQ(run("env PMI_SIZE=2 PMI_RANK=0 " + asking), 0) << output();
    EXPECT_THAT(output(), HasSubstr(answer)) << question;
    for (const char* other : {"PMI_SIZE=2 PMI_RANK=1 ", "PMIX_RANK=1 "}) {
      EXPECT_EQ(run("env " + std::string(other) + asking), 0) << output();
      EXPECT_EQ(output(), "") << question;
    }
  }
  EXPECT_EQ(run("env SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=0 " + command(1, "run")), 0)
      << output();
}

TEST_F(Program, FewerThreadsThanWereAskedForAreTakenAndTold) {
  int number = 0;
  const auto with = [&](const std::string& variables) {
    const std::string name = fmt::format("threads-{}", number++);
    EXPECT_EQ(run("env OMP_NUM_THREADS=3 OMP_WAIT_POLICY=passive " + variables + " " +
                  arguments_of(name, "--set train.steps=2")),
              0)
        << output();
    return output();
  };
  EXPECT_THAT(with("OMP_THREAD_LIMIT=2"), HasSubstr("computes with 2 of 3 threads"));
  EXPECT_THAT(with("OMP_MAX_ACTIVE_LEVELS=0"), HasSubstr("computes with 1 of 3 threads"));
  EXPECT_THAT(with("OMP_DYNAMIC=true"), Not(HasSubstr("of 3 threads")));
  EXPECT_THAT(with("KOKKOS_NUM_THREADS=4 OMP_THREAD_LIMIT=2"), HasSubstr("computes with 2 of 4 threads"));
  EXPECT_THAT(failure("env KOKKOS_NUM_THREADS=2x " + arguments_of("run", "")),
              HasSubstr("KOKKOS_NUM_THREADS='2x'"));
}

TEST_F(Program, OtherThreadsAndKernelsOfBlasAreToldWhenTheRunGoesOn) {
  ASSERT_EQ(run("env OMP_NUM_THREADS=1 " + arguments_of("run", "--set train.steps=2")), 0) << output();
  ASSERT_EQ(run("env OMP_NUM_THREADS=1 " + arguments_of("run", "--set train.steps=4")), 0) << output();
  EXPECT_THAT(output(), Not(HasSubstr("to rounding")));
  ASSERT_EQ(run("env OMP_NUM_THREADS=2 " + arguments_of("run", "--set train.steps=6")), 0) << output();
  EXPECT_THAT(output(),
              AllOf(HasSubstr("the threads of a rank: '1' when the checkpoint was written, '2' now"),
                    HasSubstr("set OMP_NUM_THREADS=1")));
  EXPECT_THAT(output(), Not(HasSubstr("BLAS")));
  ASSERT_EQ(
      run("env OMP_NUM_THREADS=2 OPENBLAS_CORETYPE=Nehalem " + arguments_of("run", "--set train.steps=8")), 0)
      << output();
  EXPECT_THAT(output(), Not(HasSubstr("the threads of a rank")));
  // A BLAS other than OpenBLAS, and one for other processors, does not listen.
  if (output().find("Nehalem") != std::string::npos) {
    EXPECT_THAT(output(), HasSubstr("the kernels of BLAS: 'OpenBLAS "));
  }
}

TEST_F(Program, TheConfigurationOfARunFromAnotherFolderIsWarnedOf) {
  const auto in = [&](const std::string& folder, const std::string& arguments) {
    return run("bash -c 'mkdir -p " + folder + " && cd " + folder + " && exec " ANNULUS_TRAIN_PROGRAM " " +
               arguments + "'");
  };
  const std::string home = folder_.file("home"), elsewhere = folder_.file("elsewhere");
  const std::string config = home + "/runs/a/config.toml";
  ASSERT_EQ(in(home, folder_.file("run.toml") +
                         " --set run.folder=runs/a --set data.shards=" + folder_.file("shards")),
            0)
      << output();
  ASSERT_EQ(in(home, "runs/a/config.toml"), 0) << output();
  EXPECT_THAT(output(), AllOf(HasSubstr("nothing to do"), Not(HasSubstr("is the configuration of the run"))));
  ASSERT_EQ(in(elsewhere, config), 0) << output();
  EXPECT_THAT(output(), mentions("is the configuration of the run", "--set run.folder=" + home + "/runs/a",
                                 "leads to " + elsewhere + "/runs/a"));
  ASSERT_EQ(in(elsewhere, config + " --set run.folder=" + home + "/runs/a"), 0) << output();
  EXPECT_THAT(output(), AllOf(HasSubstr("nothing to do"), Not(HasSubstr("is the configuration of the run"))));
  ASSERT_EQ(in(elsewhere, config + " --set run.folder=runs/b"), 0) << output();
  EXPECT_THAT(output(), Not(HasSubstr("is the configuration of the run")));
}

TEST_F(Program, ARunWhoseModelIsGoneGoesOnFromItsCheckpoints) {
  const auto in = [&](const std::string& folder, const std::string& arguments) {
    return run("bash -c 'mkdir -p " + folder + " && cd " + folder + " && exec " ANNULUS_TRAIN_PROGRAM " " +
               arguments + "'");
  };
  const std::string home = folder_.file("home"), elsewhere = folder_.file("elsewhere");
  ASSERT_EQ(run(arguments_of("first", "--set train.steps=2")), 0) << output();
  fs::create_directories(home);
  fs::rename(path("first/checkpoints/step-00000002"), home + "/model");
  const std::string config = home + "/runs/a/config.toml",
                    data = " --set data.shards=" + folder_.file("shards");
  ASSERT_EQ(
      in(home, folder_.file("run.toml") + " --set run.folder=runs/a model.from=model train.steps=4" + data),
      0)
      << output();
  // From another folder: which keys lead elsewhere, and how to go on.
  EXPECT_EQ(in(elsewhere, config), 1);
  EXPECT_THAT(output(),
              AllOf(HasSubstr("model.from: there is no 'model'"), HasSubstr("--set model.from=PATH"),
                    HasSubstr("looked for in " + elsewhere), HasSubstr("run the command in " + home + ","),
                    HasSubstr("--set run.folder=" + home + "/runs/a, --set model.from=…")));
  EXPECT_FALSE(fs::exists(elsewhere + "/runs"));
  // The model is gone, checkpoints are there: what is said works.
  fs::remove_all(home + "/model");
  EXPECT_EQ(in(home, config + " --set train.steps=6"), 1);
  const std::string remedy = "--set model.from=runs/a/checkpoints/step-00000004";
  EXPECT_THAT(output(), HasSubstr(remedy));
  EXPECT_EQ(in(home, config + " --set train.steps=6 " + remedy), 0) << output();
  EXPECT_THAT(output(), HasSubstr("resumed after optimizer step 4"));
  EXPECT_EQ(in(home, config + " --set model.from=meta-llama/Llama-3.1-8B run.folder=runs/new"), 1);
  EXPECT_THAT(output(), HasSubstr("hf download meta-llama/Llama-3.1-8B"));
}

TEST_F(Program, TwoRunsInOneFolderAreRefused) {
  Job job = start(command(1, "run", long_run));
  ASSERT_TRUE(wait_until([&] { return records("run") > 0; })) << output();
  Job second("exec " + command(1, "run", long_run), folder_.file("second"));
  EXPECT_EQ(second.wait(20), 1);
  EXPECT_THAT(second.output(), mentions("in use by another run", path("run").string()));
  ::kill(rank_process(path("run").string(), 0), SIGTERM);
  EXPECT_EQ(job.wait(20), 0) << output();
}

}  // namespace
}  // namespace annulus::train
