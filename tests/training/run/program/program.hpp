#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include <annulus/training/checkpoint/reader.hpp>
#include <annulus/training/data/packer.hpp>

#include "support/error_text.hpp"
#include "support/names_in.hpp"
#include "support/temporary_folder.hpp"
#include "training/io/atomic.hpp"
#include "training/io/json_lines.hpp"
#include "training/run/program/job.hpp"

/// annulus-train in processes of its own, on the fixture's text.
namespace annulus::training::test {

namespace fs = std::filesystem;
using annulus::test::names_in;
using testing::AllOf, testing::HasSubstr, testing::Not, testing::StartsWith;

class Program : public testing::Test {
 protected:
  void SetUp() override {
    pack("shards", data::PackOptions().shard_tokens);
    folder_.write("run.toml",
                  "[model]\nlayers = 1\nhidden = 32\nheads = 2\nkv_heads = 1\nhead_dim = 16\nffn = 40\n"
                  "[data]\nsequence_length = 64\n[train]\nsteps = 12\nwarmup_steps = 2\n"
                  "[checkpoint]\nevery = 5\nkeep = 3\n");
  }

  void pack(const std::string& name, std::int64_t shard_tokens) const {
    data::PackOptions options;
    options.inputs = {ANNULUS_FIXTURE_TEXT};
    options.output = path(name);
    options.tokenizer = data::make_byte_tokenizer();
    options.shard_tokens = shard_tokens;
    data::pack(options);
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

  int run(const std::string& command) const { return Job("exec " + command, folder_.file("output")).wait(); }
  // The program with these arguments, in a folder that is made.
  static std::string in(const std::string& folder, const std::string& arguments) {
    return "bash -c 'mkdir -p " + folder + " && cd " + folder + " && exec " ANNULUS_TRAIN_PROGRAM " " +
           arguments + "'";
  }
  // What is printed by a run that ends with this status.
  std::string said(const std::string& command, int status = 0) const {
    EXPECT_EQ(run(command), status) << output();
    return output();
  }
  // The run fails with status 1 and one line of Annulus, which is given back.
  std::string failure(const std::string& command) const {
    std::istringstream lines(said(command, 1));
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
  std::vector<double> losses(const std::string& run) const {
    std::vector<double> losses;
    io::read_json_lines(path(run) / "metrics.jsonl", [&](const nlohmann::json& record, std::int64_t line) {
      EXPECT_EQ(record.at("step"), line);
      losses.push_back(record.at("loss"));
    });
    return losses;
  }
  bool wait_for_records(const std::string& run, std::int64_t more_than) const {
    return wait_until([&] { return records(run) > more_than; });
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
      for (const checkpoint::StoredTensor& tensor : checkpoint.tensors()) {
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

/// Steps of runs that are to be interrupted: more than can be made before the signal comes.
inline constexpr const char* long_run = "--set train.steps=100000 --set checkpoint.every=0";

}  // namespace annulus::training::test
