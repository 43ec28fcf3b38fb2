// How annulus-train starts: arguments, launchers, threads, folders, and what it says of them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>

#include <annulus/data/packer.hpp>
#include <annulus/io/atomic.hpp>

#include "support/error_text.hpp"
#include "train/job.hpp"
#include "train/program.hpp"

namespace annulus::train {
namespace {

namespace fs = std::filesystem;
using annulus::train::test::Job;
using annulus::train::test::long_run;
using annulus::train::test::Program;
using annulus::train::test::rank_process;
using annulus::train::test::wait_until;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

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
  const std::string home = folder_.file("home"), elsewhere = folder_.file("elsewhere");
  const std::string config = home + "/runs/a/config.toml";
  ASSERT_EQ(run_in(home, folder_.file("run.toml") +
                             " --set run.folder=runs/a --set data.shards=" + folder_.file("shards")),
            0)
      << output();
  ASSERT_EQ(run_in(home, "runs/a/config.toml"), 0) << output();
  EXPECT_THAT(output(), AllOf(HasSubstr("nothing to do"), Not(HasSubstr("is the configuration of the run"))));
  ASSERT_EQ(run_in(elsewhere, config), 0) << output();
  EXPECT_THAT(output(), mentions("is the configuration of the run", "--set run.folder=" + home + "/runs/a",
                                 "leads to " + elsewhere + "/runs/a"));
  ASSERT_EQ(run_in(elsewhere, config + " --set run.folder=" + home + "/runs/a"), 0) << output();
  EXPECT_THAT(output(), AllOf(HasSubstr("nothing to do"), Not(HasSubstr("is the configuration of the run"))));
  ASSERT_EQ(run_in(elsewhere, config + " --set run.folder=runs/b"), 0) << output();
  EXPECT_THAT(output(), Not(HasSubstr("is the configuration of the run")));
}

TEST_F(Program, ARunWhoseModelIsGoneGoesOnFromItsCheckpoints) {
  const std::string home = folder_.file("home"), elsewhere = folder_.file("elsewhere");
  ASSERT_EQ(run(arguments_of("first", "--set train.steps=2")), 0) << output();
  fs::create_directories(home);
  fs::rename(path("first/checkpoints/step-00000002"), home + "/model");
  const std::string config = home + "/runs/a/config.toml",
                    data = " --set data.shards=" + folder_.file("shards");
  ASSERT_EQ(run_in(home, folder_.file("run.toml") +
                             " --set run.folder=runs/a model.from=model train.steps=4" + data),
            0)
      << output();
  // From another folder: which keys lead elsewhere, and how to go on.
  EXPECT_EQ(run_in(elsewhere, config), 1);
  EXPECT_THAT(output(),
              AllOf(HasSubstr("model.from: there is no 'model'"), HasSubstr("--set model.from=PATH"),
                    HasSubstr("looked for in " + elsewhere), HasSubstr("run the command in " + home + ","),
                    HasSubstr("--set run.folder=" + home + "/runs/a, --set model.from=…")));
  EXPECT_FALSE(fs::exists(elsewhere + "/runs"));
  // The model is gone, checkpoints are there: what is said works.
  fs::remove_all(home + "/model");
  EXPECT_EQ(run_in(home, config + " --set train.steps=6"), 1);
  const std::string remedy = "--set model.from=runs/a/checkpoints/step-00000004";
  EXPECT_THAT(output(), HasSubstr(remedy));
  EXPECT_EQ(run_in(home, config + " --set train.steps=6 " + remedy), 0) << output();
  EXPECT_THAT(output(), HasSubstr("resumed after optimizer step 4"));
  EXPECT_EQ(run_in(home, config + " --set model.from=meta-llama/Llama-3.1-8B run.folder=runs/new"), 1);
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
