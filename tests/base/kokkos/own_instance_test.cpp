#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "base/kokkos/execution/own_instance.hpp"

namespace annulus {
namespace {

// Stands for an instance of a device; notes what happens to it.
struct FakeDevice {
  std::vector<std::string>* events;
  int* stream;
  void fence(const std::string&) const { events->push_back("fence"); }
  void* cuda_stream() const { return stream; }
};

TEST(OwnInstance, EndsWithItsStreamAfterTheWork) {
  static std::vector<std::string> events;  // the listener stays until the process ends
  static int one = 0, two = 0;
  at_stream_end([](void* stream) { events.push_back(stream == &one ? "end of one" : "end of two"); });
  {
    const OwnInstance first(FakeDevice{&events, &one});
    {
      const OwnInstance second(FakeDevice{&events, &two});
      EXPECT_EQ((*second).cuda_stream(), &two);
    }
    EXPECT_THAT(events, testing::ElementsAre("fence", "end of two"));
  }
  EXPECT_THAT(events, testing::ElementsAre("fence", "end of two", "fence", "end of one"));

  // Where an error unwinds the stack nobody waits for the device.
  events.clear();
  try {
    const OwnInstance instance(FakeDevice{&events, &one});
    throw std::runtime_error("a rank is lost");
  } catch (const std::runtime_error&) {
  }
  EXPECT_THAT(events, testing::IsEmpty());
}

TEST(OwnInstance, OfTheHostIsTheDefaultOne) {
  const OwnInstance<HostExec> instance;
  EXPECT_EQ((*instance).concurrency(), HostExec().concurrency());
}

}  // namespace
}  // namespace annulus
