#pragma once

#include <cstdint>
#include <string>

#include <annulus/train/config.hpp>

#include "train/tiny_run.hpp"

/// What runs that have ended left in their folders, beside one another.
namespace annulus::train::test {

/// The same run in a folder of its own.
Config copy(const Config& config, const std::string& name);

/// Makes the folder of `resumed` that of a run which was interrupted behind optimizer step `step` of `whole`.
void interrupt(const Config& whole, std::int64_t step, const Config& resumed);

/// The checkpoint of the last optimizer step.
State last_state(const Config& config);
std::string log_of(const Config& config);

/// EXPECTs equal losses, gradient norms, parameters, moments and places in the data.
void expect_same_bits(const Config& a, const Config& b);

/// ‖a − b‖ / ‖a‖ of the parameters.
double difference(const Config& a, const Config& b);

}  // namespace annulus::train::test
