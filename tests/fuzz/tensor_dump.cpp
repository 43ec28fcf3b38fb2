// Tensor dumps (docs/formats/tensor-dump.md) as annulus-diff reads them.
#include "../../apps/diff/compare.hpp"
#include "../../apps/diff/report.hpp"
#include "memory_file.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace annulus;
  const fuzz::MemoryFile file(data, size);
  fuzz::accepts(file.path(), [&] {
    const diff::TensorFile a(file.path()), b(file.path());
    a.description();
    const auto differences = diff::compare(a, b, {});
    diff::table(differences);
    diff::verdict(differences);
    for (const diff::TensorDifference& difference : differences)
      fuzz::expect(difference.passed(), "no difference between a file and itself", difference.name);
  });
  return 0;
}
