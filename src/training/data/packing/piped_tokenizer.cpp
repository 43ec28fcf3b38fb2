#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <system_error>

#include <annulus/base/error.hpp>
#include <annulus/training/data/tokenizer.hpp>

namespace annulus::data {

namespace {

class PipedTokenizer final : public Tokenizer {
 public:
  PipedTokenizer(TokenizerIdentity identity, std::string model, int socket)
      : identity_(std::move(identity)), model_(std::move(model)), socket_(socket) {}

  const TokenizerIdentity& identity() const override { return identity_; }

  std::span<const std::uint8_t> model() const override {
    return {reinterpret_cast<const std::uint8_t*>(model_.data()), model_.size()};
  }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    const std::uint64_t size = text.size();
    send(std::as_bytes(std::span(&size, 1)));
    send(std::as_bytes(std::span(text)));
    std::array<std::uint64_t, 2> answer{};  // failed, and how many ids or bytes of a message follow
    receive(std::as_writable_bytes(std::span(answer)));
    // Ids are seldom more than bytes; Unicode's compatibility forms make a text eleven times as long at most.
    require(answer[1] <= 16 * size + 1024,
            "the process that has the tokenizer '{}' answers with {} ids for {} bytes", identity_.name,
            answer[1], size);
    if (answer[0] != 0) {
      std::string message(answer[1], '\0');
      receive(std::as_writable_bytes(std::span(message)));
      fail("{}", message);
    }
    const std::size_t before = ids.size();
    ids.resize(before + answer[1]);
    receive(std::as_writable_bytes(std::span(ids).subspan(before)));
  }

  std::string decode(std::span<const std::int32_t>) const override {
    fail("ids of the tokenizer '{}' are decoded by the program that made them", identity_.name);
  }

 private:
  [[noreturn]] void lost(ssize_t count) const {
    fail("the process that has the tokenizer '{}' has ended ({}): see what it says, and pack again",
         identity_.name, count < 0 ? std::generic_category().message(errno) : "it sends nothing more");
  }
  void send(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0 && errno != EINTR) lost(count);
      if (count > 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }
  void receive(std::span<std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = ::recv(socket_, bytes.data(), bytes.size(), 0);
      if (count == 0 || (count < 0 && errno != EINTR)) lost(count);
      if (count > 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }

  TokenizerIdentity identity_;
  std::string model_;
  int socket_;
};

}  // namespace

std::unique_ptr<const Tokenizer> make_piped_tokenizer(TokenizerIdentity identity, std::string model,
                                                      int socket) {
  return std::make_unique<PipedTokenizer>(std::move(identity), std::move(model), socket);
}

}  // namespace annulus::data
