// How annulus-train starts: arguments, launchers, threads, folders, and what it says of them.

#include "training/run/program/program.hpp"

namespace annulus::training::test {
namespace {

TEST_F(Program, RunsWithoutMpirunAndPrintsItsConfiguration) {
  EXPECT_THAT(said(arguments_of("run", "--set train.steps=2")),
              testing::ContainsRegex(
                  "saved .*step-00000002 \\([0-9.]+ kB in [0-9.]+ s, [0-9.]+ [kMG]B/s; training "));
  EXPECT_THAT(said(arguments_of("run", "--print-config")), mentions("hidden = 32  # ", "[checkpoint]"));
  EXPECT_THAT(said(ANNULUS_TRAIN_PROGRAM " --help"), HasSubstr("Exit status: 0"));
  // Where MPI cannot start, answers are given.
  EXPECT_THAT(said("env OMPI_MCA_ess=none " ANNULUS_TRAIN_PROGRAM " --version"), HasSubstr("annulus-train "));
  EXPECT_THAT(failure(ANNULUS_TRAIN_PROGRAM), HasSubstr("no configuration was given"));
  EXPECT_THAT(failure(ANNULUS_TRAIN_PROGRAM " /none/such.toml"), HasSubstr("/none/such.toml"));
}

TEST_F(Program, KeysThatAreGivenAsOptionsAreNamed) {
  for (const auto& [given, meant] : {std::pair("--learning-rate 3e-4", "--set train.lr=VALUE"),
                                     {"--batch-size=8", "--set train.micro_batches=VALUE"},
                                     {"--seq-len 128", "--set data.sequence_length=VALUE"},
                                     {"--resme auto", "did you mean --resume?"},
                                     {"--utterly-other", "--set section.key=value"}})
    EXPECT_THAT(said(arguments_of("run", given), 1), HasSubstr(meant));
  EXPECT_EQ(said(ANNULUS_TRAIN_PROGRAM " run.toml --plan-memory --ranks 0", 1),
            "--ranks: '0': give a number of 1 or more\nannulus-train --help explains\n");
  EXPECT_THAT(said(ANNULUS_TRAIN_PROGRAM " run.toml --plan-memory --measured runs", 1),
              HasSubstr("--measured requires --html"));
  // Several keys behind one --set, and the configuration behind them.
  EXPECT_THAT(
      said(arguments_of("run", "--print-config --set train.steps=7 'train.lr = 0.5' train.warmup_steps=3")),
      mentions("\nsteps = 7 ", "\nlr = 0.5 ", "\nwarmup_steps = 3 "));
  EXPECT_THAT(said(ANNULUS_TRAIN_PROGRAM " --print-config --set train.steps=7 train.lr=0.5 " +
                   folder_.file("run.toml")),
              mentions("\nsteps = 7 ", "\nlr = 0.5 ", "hidden = 32 "));
}

TEST_F(Program, WhatIsWrongIsSaidOnceWithTheRemedy) {
  const struct {
    int ranks;
    std::string arguments;
    std::vector<std::string> named;
  } cases[] = {
      {3, "parallel.context=2", {"rank 0: parallel.context = 2", "3 ranks"}},
      {2, "train.step=3", {"did you mean 'train.steps'"}},
      {2, "parallel.ranks_per_node=5", {"5 ranks per node"}},
      {2, "run.device=cpu parallel.transport=nccl", {"parallel.transport = 'nccl'", "run.device = 'cpu'"}},
      {2, "parallel.transport=tcp", {"parallel.transport = 'tcp'"}},
      {2, "data.shards=" + folder_.file("none"), {"data.shards: ", folder_.file("none")}},
      {2, "data.shards=none", {"data.shards: ", "--set data.shards=PATH", fs::current_path().string()}}};
  for (const auto& [ranks, arguments, named] : cases) {
    const std::string line = failure(command(ranks, "run", "--set " + arguments));
    for (const std::string& name : named) EXPECT_THAT(line, HasSubstr(name));
  }
  EXPECT_FALSE(fs::exists(path("run")));

  const std::string shard = folder_.file("shards/tokens-000000.h5");
  const std::string bytes = io::read_text(shard);
  folder_.write("shards/tokens-000000.h5", bytes.substr(0, bytes.size() / 2));
  EXPECT_THAT(failure(command(2, "run")), mentions(shard, "truncated"));
  folder_.write("shards/tokens-000000.h5", bytes);
}

/// What is said, soon, when rank 1 of some has arguments of its own.
class Mixed : public Program {
 protected:
  std::string mixed(int ranks, const std::string& other) const {
    std::string line = command(1, "run") + " : -n 1 " + arguments_of("run", other);
    for (int rank = 2; rank < ranks; ++rank) line += " : -n 1 " + arguments_of("run", "");
    const auto begin = std::chrono::steady_clock::now();
    line = failure(line);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
    return line;
  }
};

TEST_F(Mixed, RanksThatWereStartedDifferentlyEndTogetherInOneLine) {
  pack("other", 3000);
  EXPECT_THAT(mixed(3, "--set train.lr=0.01"), HasSubstr("train.lr: 0.01 on rank 1, 0.0003 on ranks 0, 2; "));
  EXPECT_THAT(mixed(3, "--set data.shards=" + folder_.file("other")),
              mentions("the data: ", " on rank 1, ", " on ranks 0, 2; "));
  EXPECT_THAT(mixed(3, "--set parallel.ranks_per_node=1"),
              HasSubstr("parallel.ranks_per_node: 1 on rank 1, 0 on ranks 0, 2; "));
  EXPECT_FALSE(fs::exists(path("run")));
  // And when the run goes on.
  said(command(3, "run"));
  EXPECT_THAT(mixed(3, "--set attention.mask=window:9,0"),
              HasSubstr("attention.mask: 'window:9,0' on rank 1, 'causal' on ranks 0, 2; "));
  EXPECT_EQ(records("run"), 12);
}

TEST_F(Mixed, OneRankWithOtherArgumentsEndsAllWithItsMessage) {
  EXPECT_THAT(mixed(2, "--nonsense"), mentions("--nonsense on rank 1", "on rank 0; "));
  EXPECT_THAT(mixed(2, "--version"), HasSubstr("--version on rank 1"));
  EXPECT_THAT(mixed(2, "--print-config"), HasSubstr("--print-config: given on rank 1, not given on rank 0"));
  EXPECT_FALSE(fs::exists(path("run")));
  // What is wrong on all ranks is told once, as without mpirun.
  EXPECT_THAT(said(command(2, "run", "--nonsense"), 1),
              AllOf(HasSubstr("--nonsense"), Not(HasSubstr("ranks disagree"))));
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

TEST_F(Program, ProcessesOfALauncherThatMpiDoesNotKnowAreRefused) {
  const auto by = [&](const std::string& variables) {
    return "env " + variables + " " + arguments_of("run", "");
  };
  EXPECT_THAT(failure(by("PMI_SIZE=2 PMI_RANK=0 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=0")),
              mentions("PMI_SIZE=2", "ANNULUS_ALONE=1"));
  EXPECT_THAT(failure(by("SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=0")),
              HasSubstr("SLURM_STEP_NUM_TASKS=3"));
  EXPECT_THAT(failure(by("PMIX_RANK=1")), HasSubstr("PMIX_RANK=1"));
  EXPECT_EQ(run(by("PMI_SIZE=2 PMI_RANK=1")), 1);  // rank 0 has said it
  EXPECT_THAT(output(), Not(HasSubstr("annulus: ")));
  EXPECT_FALSE(fs::exists(path("run")));
  said(by("PMI_SIZE=2 PMI_RANK=0 ANNULUS_ALONE=1"));
  // Answers need no ranks: the first gives them.
  for (const auto& [question, answer] :
       {std::pair("--help", "Exit status: 0"), std::pair("--version", "annulus-train "),
        std::pair("--print-config", "[checkpoint]"),
        std::pair("--set model.vocabulary=257 --plan-memory", "predicted, not measured")}) {
    const std::string asking = arguments_of("asked", question);
    said("env PMI_SIZE=2 PMI_RANK=0 " + asking);
    EXPECT_THAT(output(), HasSubstr(answer)) << question;
    for (const char* other : {"PMI_SIZE=2 PMI_RANK=1 ", "PMIX_RANK=1 "}) {
      said("env " + std::string(other) + asking);
      EXPECT_EQ(output(), "") << question;
    }
  }
  said("env SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=0 " + command(1, "run"));
}

TEST_F(Program, FewerThreadsThanWereAskedForAreTakenAndTold) {
  int number = 0;
  const auto with = [&](const std::string& variables) {
    const std::string name = fmt::format("threads-{}", number++);
    said("env OMP_NUM_THREADS=3 OMP_WAIT_POLICY=passive " + variables + " " +
         arguments_of(name, "--set train.steps=2"));
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
  said("env OMP_NUM_THREADS=1 " + arguments_of("run", "--set train.steps=2"));
  EXPECT_THAT(said("env OMP_NUM_THREADS=1 " + arguments_of("run", "--set train.steps=4")),
              Not(HasSubstr("to rounding")));
  EXPECT_THAT(said("env OMP_NUM_THREADS=2 " + arguments_of("run", "--set train.steps=6")),
              mentions("the threads of a rank: '1' when the checkpoint was written, '2' now",
                       "set OMP_NUM_THREADS=1"));
  EXPECT_THAT(output(), Not(HasSubstr("the kernels of BLAS")));
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
  said(in(home,
          folder_.file("run.toml") + " --set run.folder=runs/a --set data.shards=" + folder_.file("shards")));
  EXPECT_THAT(said(in(home, "runs/a/config.toml")),
              AllOf(HasSubstr("nothing to do"), Not(HasSubstr("is the configuration of the run"))));
  EXPECT_THAT(said(in(elsewhere, config)),
              mentions("is the configuration of the run", "--set run.folder=" + home + "/runs/a",
                       "leads to " + elsewhere + "/runs/a"));
  EXPECT_THAT(said(in(elsewhere, config + " --set run.folder=" + home + "/runs/a")),
              AllOf(HasSubstr("nothing to do"), Not(HasSubstr("is the configuration of the run"))));
  EXPECT_THAT(said(in(elsewhere, config + " --set run.folder=runs/b")),
              Not(HasSubstr("is the configuration of the run")));
}

TEST_F(Program, ARunWhoseModelIsGoneGoesOnFromItsCheckpoints) {
  const std::string home = folder_.file("home"), elsewhere = folder_.file("elsewhere");
  said(arguments_of("first", "--set train.steps=2"));
  fs::create_directories(home);
  fs::rename(path("first/checkpoints/step-00000002"), home + "/model");
  const std::string config = home + "/runs/a/config.toml",
                    data = " --set data.shards=" + folder_.file("shards");
  said(in(home, folder_.file("run.toml") + " --set run.folder=runs/a model.from=model train.steps=4" + data));
  // From another folder: which keys lead elsewhere, and how to go on.
  EXPECT_THAT(said(in(elsewhere, config), 1),
              mentions("model.from: there is no 'model'", "--set model.from=PATH",
                       "looked for in " + elsewhere, "run the command in " + home + ",",
                       "--set run.folder=" + home + "/runs/a, --set model.from=…"));
  EXPECT_FALSE(fs::exists(elsewhere + "/runs"));
  // The model is gone, checkpoints are there: what is said works.
  fs::remove_all(home + "/model");
  const std::string remedy = "--set model.from=runs/a/checkpoints/step-00000004";
  EXPECT_THAT(said(in(home, config + " --set train.steps=6"), 1), HasSubstr(remedy));
  EXPECT_THAT(said(in(home, config + " --set train.steps=6 " + remedy)),
              HasSubstr("resumed after optimizer step 4"));
  EXPECT_THAT(said(in(home, config + " --set model.from=meta-llama/Llama-3.1-8B run.folder=runs/new"), 1),
              HasSubstr("hf download meta-llama/Llama-3.1-8B"));
}

}  // namespace
}  // namespace annulus::training::test
