#pragma once

#include "comm/mpi_communicator.hpp"

namespace annulus::comm {

/// An exchange under way over MPI.
class MpiState final : public Request::State {
 public:
  explicit MpiState(std::shared_ptr<MpiLink> link) : link_(std::move(link)) {}
  ~MpiState() override;

  /// Starts one message, in pieces.
  void receive(const Receive& message, int tag, std::size_t piece_bytes);
  void send(const Send& message, int tag, std::size_t piece_bytes);

  void wait() override;
  bool test() override;
  void drop() noexcept override;

 private:
  /// What a finished piece is checked against. Sends have expected = -1.
  struct Piece {
    int peer = 0, tag = 0, expected = -1;
  };

  template <class Start>
  void in_pieces(std::size_t bytes, std::size_t piece_bytes, Piece piece, bool receives, const Start& start);
  /// Throws Error unless all went well and every receive got what it expected.
  void check(int code, const char* call) const;
  [[noreturn]] void size_error(const Piece& piece, const std::string& got) const;
  void give_up() noexcept;

  std::shared_ptr<MpiLink> link_;
  std::vector<MPI_Request> requests_;
  std::vector<Piece> pieces_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace annulus::comm
