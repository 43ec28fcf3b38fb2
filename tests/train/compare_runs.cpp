#include "train/compare_runs.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include <annulus/io/atomic.hpp>

namespace annulus::train::test {

namespace fs = std::filesystem;

Config copy(const Config& config, const std::string& name) {
  Config changed = config;
  changed.run.folder += " " + name;
  return changed;
}

void interrupt(const Config& whole, std::int64_t step, const Config& resumed) {
  fs::create_directories(fs::path(resumed.run.folder) / "checkpoints");
  fs::copy(checkpoint_of(whole, step), checkpoint_of(resumed, step), fs::copy_options::recursive);
  fs::copy(fs::path(whole.run.folder) / "metrics.jsonl", fs::path(resumed.run.folder) / "metrics.jsonl");
}

State last_state(const Config& config) {
  return state_of(config, checkpoint_of(config, config.train.steps));
}

std::string log_of(const Config& config) {
  return io::read_text(fs::path(config.run.folder) / "train.log");
}

void expect_same_bits(const Config& a, const Config& b) {
  EXPECT_EQ(losses(a), losses(b));
  EXPECT_EQ(metric(a, "grad_norm"), metric(b, "grad_norm"));
  const State x = last_state(a), y = last_state(b);
  EXPECT_TRUE(x.parameters == y.parameters);  // not EXPECT_EQ, which would print them
  EXPECT_TRUE(x.first_moment == y.first_moment);
  EXPECT_TRUE(x.second_moment == y.second_moment);
  EXPECT_EQ(x.progress.epoch, y.progress.epoch);
  EXPECT_EQ(x.progress.sequences_read, y.progress.sequences_read);
}

double difference(const Config& a, const Config& b) {
  const State x = last_state(a), y = last_state(b);
  if (x.parameters.size() != y.parameters.size()) return INFINITY;
  double squares = 0, differences = 0;
  for (std::size_t i = 0; i < x.parameters.size(); ++i) {
    squares += std::pow(double(x.parameters[i]), 2);
    differences += std::pow(double(x.parameters[i]) - y.parameters[i], 2);
  }
  return std::sqrt(differences / squares);
}

}  // namespace annulus::train::test
