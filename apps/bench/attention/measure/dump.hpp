#pragma once

#include <annulus/io/hdf5_writer.hpp>

#include "bench/attention/cases/case.hpp"
#include "bench/attention/measure/report.hpp"

namespace annulus::bench {

/// Sets the attributes that tell what a tensor dump was computed with (docs/formats/tensor-dump.md).
void describe_dump(io::FileWriter& file, const Case& c, double scale, const Machinery& on);

}  // namespace annulus::bench
