#pragma once

#include <annulus/io/hdf5.hpp>

#include "bench/case.hpp"

namespace annulus::bench {

/// Sets the attributes that tell what a tensor dump was computed with (docs/formats/tensor-dump.md).
void describe_dump(io::File& file, const Case& c, double scale, const std::string& device);

}  // namespace annulus::bench
