// annulus-train under mpirun, as its users run it and as machines treat it.

#include <cmath>
#include <tuple>

#include "training/run/program/program.hpp"

namespace annulus::training::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Who gets which signal: a rank, or −1 for mpirun, which hands SIGUSR1 on.
class Signal : public Program, public testing::WithParamInterface<std::tuple<int, int>> {};

TEST_P(Signal, SavesAndEndsAllAndTheRunGoesOnBitForBit) {
  const auto [number, who] = GetParam();
  Job job = start(command(2, "run", long_run));
  ASSERT_TRUE(wait_for_records("run", 3)) << output();
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
  EXPECT_THAT(names_in(path("run") / "checkpoints"),
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
  EXPECT_THAT(said(command(5, "run", "--summary")),
              mentions("step 12/12", "what to try next", "unigram entropy", checkpoint("run", 12).string()));
  EXPECT_THAT(names_in(path("run")),
              ElementsAre("checkpoints", "config.toml", StartsWith("events.out.tfevents."), "memory.json",
                          "metrics.jsonl", "run.lock", "summary.json", "train.log"));
  EXPECT_THAT(names_in(path("run") / "checkpoints"),
              ElementsAre("step-00000005", "step-00000010", "step-00000012"));
  EXPECT_EQ(summary("run").at("finished"), true);
  EXPECT_EQ(summary("run").at("ranks"), 5);
  // When the command runs again, there is nothing to do and nothing is lost.
  EXPECT_THAT(said(command(5, "run", "--summary")),
              mentions("nothing to do: 12 of 12 optimizer steps are done", "none: 12 of 12"));
  EXPECT_EQ(summary("run").at("finished"), true);
  EXPECT_TRUE(summary("run").at("last_loss").is_null());
  EXPECT_EQ(records("run"), 12);
}

// A run keeps the curve of the learning rate that it began with, which has ended by then.
TEST_F(Program, TheTipToTrainOnTakesTheLearningRateOffItsMinimum) {
  said(command(2, "run", "--summary"));
  const std::string text = output(), title = "train on, twice as long\n";
  const std::size_t at = text.find(title);
  ASSERT_NE(at, text.npos) << text;
  const std::size_t begin = at + title.size();
  said(text.substr(begin, text.find('\n', begin) - begin));
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
  EXPECT_THAT(output(), mentions("OpenMP in bf16, attention kernel host_simd", "MFU", "TFLOP/s per rank"));
  EXPECT_THAT(summary("run").at("device").get<std::string>(), HasSubstr("bf16"));
  EXPECT_THAT(summary("run").at("transport").get<std::string>(), HasSubstr("mpi"));
  EXPECT_GT(summary("run").at("tflops"), 0.0);
}

TEST_F(Program, AFullDiskCostsCheckpointsAndTheStatusNotTheRun) {
  // Files end at 10 MB, parts of checkpoints are larger.
  const std::string large = "--set model.hidden=512 --set model.ffn=1024";
  EXPECT_THAT(said("bash -c 'ulimit -f 10000; exec " + command(2, "run", large) + "'", 2),
              mentions("the checkpoint of optimizer step 5 was not saved, training goes on", "step 12/12",
                       "could not be saved"));
  EXPECT_THAT(names_in(path("run") / "checkpoints"), IsEmpty());  // no temporary file either
  EXPECT_EQ(records("run"), 12);
  EXPECT_EQ(summary("run").at("failed_saves"), 3);
  EXPECT_EQ(summary("run").at("last_save_failed"), true);
  // With room again the same command ends well.
  said(command(2, "run", large));
  EXPECT_EQ(summary("run").at("finished"), true);
}

TEST_F(Program, ARankThatDiesInAShardedStepEndsAllAndLosesNothing) {
  const std::string sharded =
      "--set parallel.zero=3 --set model.hidden=96 --set model.ffn=256 "
      "--set checkpoint.keep=1000 --set train.schedule_steps=100000";
  Job job = start(command(3, "run", sharded + " --set train.steps=100000 --set checkpoint.every=4"));
  ASSERT_TRUE(wait_for_records("run", 9)) << output();
  ::kill(rank_process(path("run").string(), 1), SIGKILL);
  const auto begin = std::chrono::steady_clock::now();
  const int status = job.wait(30);
  EXPECT_NE(status, 0);
  EXPECT_NE(status, -1) << "still running: " << output();
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 20);
  EXPECT_LT(rank_process(path("run").string(), 0), 0);
  // From its last checkpoint the run goes on, to what a run comes to that nothing happened to.
  const std::int64_t last = records("run"), end = last + 4;
  const std::string to_the_end = sharded + fmt::format(" --set train.steps={} --set checkpoint.every=0", end);
  EXPECT_THAT(said(command(3, "run", to_the_end)), HasSubstr("resumed after optimizer step "));
  said(command(3, "whole", to_the_end));
  EXPECT_EQ(losses("run"), losses("whole"));
  EXPECT_EQ(arrays(checkpoint("run", static_cast<int>(end))),
            arrays(checkpoint("whole", static_cast<int>(end))));
}

// Gathers and sums in two stages over MPI; and sums in MPI's own order, which all ranks see alike.
TEST_F(Program, NodesChangeNoBitAndNativeSumsAgreeUnderEveryStage) {
  const auto train = [&](const std::string& name, int zero, const std::string& more) {
    said(command(4, name,
                 fmt::format("--set parallel.zero={} --set model.hidden=96 --set model.ffn=256 --set "
                             "train.steps=3 --set train.epsilon=0.001 --set train.check_replicas=1 {}",
                             zero, more)));
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
              HasSubstr("parallel.sums = 'tree' is unknown"));
}

TEST_F(Program, ATerminalThatIsGoneAndALimitOfProcessorTimeSave) {
  for (const auto& [number, name] : {std::pair(SIGHUP, "SIGHUP"), std::pair(SIGXCPU, "SIGXCPU")}) {
    const auto before = signal(number, SIG_DFL);  // whatever this test was started by
    Job job = start(arguments_of(name, long_run));
    signal(number, before);
    ASSERT_TRUE(wait_for_records(name, 1)) << output();
    job.signal(number);
    EXPECT_EQ(job.wait(20), 0) << output();
    EXPECT_THAT(output(), HasSubstr(fmt::format("stopped by {} after optimizer step", name)));
    EXPECT_EQ(names_in(path(name) / "checkpoints").size(), 1u);
  }
}

TEST_F(Program, WhatIsIgnoredAtTheStartStaysIgnored) {
  Job job("trap '' HUP; exec " + arguments_of("run", long_run), folder_.file("output"));  // as nohup does
  ASSERT_TRUE(wait_for_records("run", 1)) << output();
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

}  // namespace
}  // namespace annulus::training::test
