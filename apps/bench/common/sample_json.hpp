#pragma once

#include <nlohmann/json.hpp>

#include "prediction/measurement/sampling.hpp"

namespace annulus::bench {

/// A measured time as all reports write it; seconds.
inline nlohmann::json to_json(const measurement::Sample& s) {
  return {{"median", s.median},
          {"min", s.min},
          {"max", s.max},
          {"repetitions", s.repetitions},
          {"iterations", s.iterations}};
}

}  // namespace annulus::bench
