#include "training/io/event_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string_view>

#include "training/io/atomic.hpp"

namespace annulus::io {

namespace {

// CRC-32C (Castagnoli), of which TFRecords take a rotated form. zlib has another polynomial.
std::uint32_t masked_crc32c(std::string_view bytes) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> made{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      std::uint32_t value = byte;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f63b78u : 0u);
      made[byte] = value;
    }
    return made;
  }();
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = table[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ (crc >> 8);
  return std::rotr(~crc, 15) + 0xa282ead8u;
}

template <class T>
std::string little_endian(T value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

// Protocol Buffers: a field is its number and the form of its value, then the value.
enum class WireType : std::uint8_t { varint = 0, eight_bytes = 1, counted_bytes = 2, four_bytes = 5 };

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes + static_cast<char>(value);
}

std::string field(int number, WireType wire, const std::string& value) {
  return varint(static_cast<std::uint64_t>(number) << 3 | static_cast<std::uint64_t>(wire)) + value;
}

std::string message(int number, const std::string& contents) {
  return field(number, WireType::counted_bytes, varint(contents.size()) + contents);
}

// The fields' numbers are those of event.proto and summary.proto.
std::string event_of(std::int64_t step, const std::string& what) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return field(1, WireType::eight_bytes, little_endian(std::bit_cast<std::uint64_t>(now.count()))) +
         field(2, WireType::varint, varint(static_cast<std::uint64_t>(step))) + what;
}

std::string scalar(const std::string& tag, float value) {
  return message(1, message(1, tag) +
                        field(2, WireType::four_bytes, little_endian(std::bit_cast<std::uint32_t>(value))));
}

// The numbers of an object whose keys follow `path`.
std::string scalars(const std::string& path, const nlohmann::json& object) {
  std::string all;
  for (const auto& [key, value] : object.items()) {
    if (value.is_number()) all += scalar(path + "/" + key, value.get<float>());
    if (value.is_object()) all += scalars(path + "/" + key, value);
  }
  return all;
}

std::filesystem::path new_name(const std::filesystem::path& folder) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  return folder / fmt::format("events.out.tfevents.{:010}.{}.{}", seconds.count(), host.data(), ::getpid());
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder, std::int64_t step) {
  const std::filesystem::path path = new_name(folder);
  path_ = path.string();
  file_ = open_own_file(path, true);
  append(event_of(0, message(3, "brain.Event:2")));
  // SessionLog with the status START: later events of other files no longer count.
  if (step > 0) append(event_of(step + 1, message(7, field(1, WireType::varint, varint(1)))));
}

void EventFile::write(std::int64_t step, const std::string& group, const nlohmann::json& record) {
  std::string all;
  for (const auto& [key, value] : record.items()) {
    if (value.is_number()) all += scalar(group + "/" + key, value.get<float>());
    if (value.is_object()) all += scalars(key, value);
  }
  append(event_of(step, message(5, all)));
}

void EventFile::append(const std::string& event) {
  const std::string size = little_endian(static_cast<std::uint64_t>(event.size()));
  append_record(file_.get(), path_,
                size + little_endian(masked_crc32c(size)) + event + little_endian(masked_crc32c(event)));
}

}  // namespace annulus::io
