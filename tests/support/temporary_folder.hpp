#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace annulus::test {

/// An empty folder that goes away with this object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "annulus-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make the folder " + name);
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }

  /// Full name of a file of the folder.
  std::string file(std::string_view name) const { return (path_ / name).string(); }

  /// Writes a file of the folder and gives its full name.
  std::string write(std::string_view name, std::string_view content) const {
    std::ofstream stream(path_ / name, std::ios::binary);
    stream << content;
    return file(name);
  }

 private:
  std::filesystem::path path_;
};

/// Tests with a folder each.
class FolderTest : public testing::Test {
 protected:
  const TemporaryFolder folder_;
};

}  // namespace annulus::test
