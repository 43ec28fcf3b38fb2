// annulus-diff as its users run it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/error_text.hpp"
#include "support/foreign_hdf5.hpp"
#include "support/shell.hpp"
#include "support/temporary_folder.hpp"
#include "training/io/hdf5_files/hdf5_writer.hpp"

namespace annulus::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class Diff : public testing::Test {
 protected:
  struct Tensors {
    std::vector<float> q = std::vector<float>(2 * 3 * 4, 1.0f);  // (1, 2, 3, 4)
    std::vector<float> gradient = std::vector<float>(5, -2.0f);  // (5)
    std::vector<std::int32_t> tokens = {1, 2, 3};                // (1, 3)
    std::string dtype = "f32";
    bool has_tokens = true;
    int complete = 1;
    io::Extents gradient_extents = {5};
  };

  std::string write(
      const std::string& name, const std::function<void(Tensors&)>& change = [](Tensors&) {}) {
    Tensors tensors;
    change(tensors);
    io::FileWriter file = io::FileWriter::create(folder_.file(name));
    file.set_attribute("format", "annulus-tensors");
    file.set_attribute("version", 1);
    file.set_attribute("dtype", tensors.dtype);
    file.set_attribute("step", 7);
    file.set_attribute("complete", tensors.complete);
    std::int64_t order = 0;
    const auto add = [&](const char* name, const auto& values, const io::Extents& extents,
                         const std::string& dtype, const char* dimensions) {
      using T = typename std::decay_t<decltype(values)>::value_type;
      io::DatasetWriter dataset = file.create_dataset(name, dtype_of<T>, extents);
      dataset.write(std::span<const T>(values));
      dataset.set_attribute("order", order++);
      dataset.set_attribute("dtype", dtype);
      dataset.set_attribute("dimensions", dimensions);
    };
    if (tensors.has_tokens) add("tokens", tensors.tokens, {1, 3}, "i32", "sequence token");
    // By name, gradients come before q; in order of computation behind it.
    add("q", tensors.q, {1, 2, 3, 4}, tensors.dtype, "sequence head token channel");
    add("gradients/w", tensors.gradient, tensors.gradient_extents, "f32",
        tensors.gradient_extents.size() == 1 ? "element" : "row column");
    file.close();
    return folder_.file(name);
  }

  ShellResult diff(const std::string& a, const std::string& b, const std::string& options = "") {
    return run_shell("'" ANNULUS_DIFF_PROGRAM "' '" + a + "' '" + b + "' " + options);
  }

  TemporaryFolder folder_;
};

TEST_F(Diff, EqualFiles) {
  EXPECT_THAT(output_of(diff(write("a.h5"), write("b.h5"))),
              mentions("3 tensors are equal within their tolerance, 3 of them bit for bit", "step 7, f32"));
}

TEST_F(Diff, NamesTheFirstInOrderOfComputationAndThePlaceOfTheWorst) {
  const auto b = write("b.h5", [](Tensors& t) {
    t.q[(1 * 3 + 2) * 4 + 1] = 1.5f;
    t.q[0] = 1.01f;
    t.gradient[4] = -1.0f;
  });
  EXPECT_THAT(output_of(diff(write("a.h5"), b), 1),
              mentions("2 of 3 in order of computation", "'q' differs: f32 (1, 2, 3, 4), 2 of 24",
                       "worst at sequence 0, head 1, token 2, channel 1: a = 1, b = 1.5", "max |a − b| 0.5",
                       "largest error 0.333", "1 more differ"));
}

TEST_F(Diff, ToleranceIsThatOfTheTypeOrTheOneGiven) {
  const auto near = [](Tensors& t) { t.q[5] += 5e-5f; };
  EXPECT_EQ(diff(write("a.h5"), write("b.h5", near)).status, 0);
  EXPECT_EQ(diff(write("a.h5"), write("b.h5", near), "--tolerance 1e-5").status, 1);
  EXPECT_EQ(diff(write("a.h5"), write("b.h5", near), "--tolerance 0").status, 1);
  const auto far = [](Tensors& t) { t.gradient[3] *= 1.05f; };
  EXPECT_EQ(diff(write("a.h5"), write("b.h5", far)).status, 1);
  // What is fp32 in a run in bf16 is as uncertain as bf16, whichever of the files it is.
  const auto bf16 = write("c.h5", [&](Tensors& t) {
    far(t);
    t.dtype = "bf16";
  });
  EXPECT_EQ(diff(write("a.h5"), bf16).status, 0);
  EXPECT_EQ(diff(bf16, write("a.h5")).status, 0);
  // Integers are equal or not.
  const auto token = write("d.h5", [](Tensors& t) {
    t.tokens[1] = 5;
    t.dtype = "bf16";
  });
  EXPECT_THAT(diff(bf16, token).output, HasSubstr("'tokens' differs"));
}

TEST_F(Diff, ATensorThatIsOffAsAWholeDiffersSooner) {
  const auto b = write("b.h5", [](Tensors& t) {
    for (float& x : t.q) x *= 1.0005f;
  });
  EXPECT_THAT(
      output_of(diff(write("a.h5"), b), 1),
      mentions("'q' differs: f32 (1, 2, 3, 4), 0 of 24 elements", "the norm's error is beyond 0.0001"));
  EXPECT_EQ(diff(write("a.h5"), b, "--tolerance 0.01").status, 0);
}

TEST_F(Diff, SmallElementsCountBesideTheirNeighbours) {
  const auto a = write("a.h5", [](Tensors& t) { t.q[0] = 1e-7f; });
  EXPECT_EQ(diff(a, write("b.h5", [](Tensors& t) { t.q[0] = -1e-7f; })).status, 0);
}

TEST_F(Diff, WhatIsNotFinite) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const auto with = [&](const char* name, float value) {
    return write(name, [&](Tensors& t) { t.q[7] = value; });
  };
  EXPECT_EQ(diff(with("a.h5", -infinity), with("b.h5", -infinity)).status, 0);
  EXPECT_EQ(diff(with("a.h5", std::nanf("")), with("b.h5", std::nanf(""))).status, 0);
  for (const float value : {1.0f, infinity}) {
    EXPECT_THAT(output_of(diff(with("a.h5", std::nanf("")), with("b.h5", value), "--tolerance 1e9"), 1),
                HasSubstr("worst at sequence 0, head 0, token 1, channel 3: a = nan"));
  }
}

TEST_F(Diff, MissingAndDifferentlyShapedTensorsAreNamed) {
  const auto a = write("a.h5", [](Tensors& t) { t.has_tokens = false; });
  const auto b = write("b.h5", [](Tensors& t) {
    t.gradient = std::vector<float>(6);
    t.gradient_extents = {2, 3};
  });
  EXPECT_THAT(output_of(diff(a, b), 1),
              mentions("1 of 3 in order of computation:\n'tokens' is missing in A",
                       "'gradients/w' is of shape (5) in A and (2, 3) in B", "1 more differ"));
  EXPECT_THAT(diff(b, a).output, HasSubstr("'tokens' is missing in B"));
}

TEST_F(Diff, FilesOfFailedStepsSaySo) {
  const auto a = write("a.h5", [](Tensors& t) { t.complete = 0; });
  EXPECT_THAT(diff(a, write("b.h5")).output, HasSubstr("INCOMPLETE"));
  EXPECT_THAT(diff(write("a.h5"), write("b.h5")).output, Not(HasSubstr("INCOMPLETE")));
}

TEST_F(Diff, TableHasALineForEveryTensor) {
  const auto result = diff(write("a.h5"), write("b.h5", [](Tensors& t) { t.gradient[2] = 0.0f; }), "--table");
  EXPECT_THAT(result.output, testing::ContainsRegex("tokens +0 +0 +0 +0 +equal\n"));
  EXPECT_THAT(result.output, testing::ContainsRegex("q +0 +0 +0 +0.001 +equal\n"));
  EXPECT_THAT(result.output, testing::ContainsRegex("gradients/w +2 +1 .* element 2  DIFFERS\n"));
}

TEST_F(Diff, WhatCannotBeReadEndsWithStatusTwo) {
  const auto a = write("a.h5");
  EXPECT_THAT(output_of(diff(a, folder_.file("none.h5")), 2), HasSubstr("none.h5"));
  io::FileWriter::create(folder_.file("other.h5")).close();
  EXPECT_THAT(diff(a, folder_.file("other.h5")).output, HasSubstr("is no tensor dump"));
  EXPECT_EQ(diff(a, "", "").status, 2);
  EXPECT_EQ(diff(a, a, "--tolerance -1").status, 2);
  EXPECT_THAT(output_of(diff(a, a, "--tolerance inf"), 2),
              HasSubstr("'inf': give a finite number of 0 or more"));
}

/// Tensors that lie elsewhere, or of which the file holds less than it says, are named.
class DiffRefused : public Diff, public testing::WithParamInterface<RefusedDataset> {};

TEST_P(DiffRefused, NamesFileTensorAndRemedy) {
  const std::string path = write("bad.h5");
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  GetParam().write(file, "gradients/z", H5T_IEEE_F32LE, {5});
  H5Fclose(file);
  EXPECT_THAT(
      output_of(diff(write("good.h5"), path), 2),
      mentions("annulus-diff: '" + path + "'", "'/gradients/z'", GetParam().problem, GetParam().remedy));
}

INSTANTIATE_TEST_SUITE_P(All, DiffRefused, testing::ValuesIn(refused_datasets()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_F(Diff, RefusesScalars) {
  io::FileWriter file = io::FileWriter::create(folder_.file("scalar.h5"));
  file.set_attribute("format", "annulus-tensors");
  file.set_attribute("version", 1);
  {
    io::DatasetWriter x = file.create_dataset("x", DType::f64, {});
    x.set_attribute("order", 0);
    x.set_attribute("dtype", "f64");
    x.set_attribute("dimensions", "");
  }
  file.close();
  EXPECT_THAT(diff(folder_.file("scalar.h5"), folder_.file("scalar.h5")).output,
              mentions("scalar.h5", "'x' is a scalar", "one dimension"));
}

}  // namespace
}  // namespace annulus::test
