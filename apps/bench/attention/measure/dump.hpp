#pragma once

#include "bench/attention/cases/case.hpp"
#include "bench/attention/measure/report.hpp"
#include "training/io/hdf5_files/hdf5_writer.hpp"

namespace annulus::bench {

/// Sets the attributes that tell what a tensor dump was computed with (docs/formats/tensor-dump.md).
void describe_dump(io::FileWriter& file, const BenchCase& c, double scale, const Machinery& on);

}  // namespace annulus::bench
