#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "support/pass_through.hpp"

namespace annulus::test {

/// Communicators of one rank that carry out their operations strictly one after the other, in the order in
/// which they are posted: the worst that a GPU may do with the NCCL kernels of several communicators. An
/// operation is posted when somebody waits for it or for one behind it.
class OneAtATime final : public PassThrough {
 public:
  /// What the communicators of a rank share.
  class Order {
   public:
    comm::Request add(std::function<comm::Request()> post) {
      posts_.push_back(std::move(post));
      return comm::Request(std::make_unique<Turn>(*this, posts_.size()));
    }
    void finish(std::size_t operations) {
      while (done_ < operations) posts_[done_++]().wait();
    }
    void finish_all() { finish(posts_.size()); }

   private:
    class Turn final : public comm::Request::State {
     public:
      Turn(Order& order, std::size_t operations) : order_(order), operations_(operations) {}
      void wait() override { order_.finish(operations_); }
      bool test() override {
        wait();
        return true;
      }

     private:
      Order& order_;
      std::size_t operations_;
    };

    std::vector<std::function<comm::Request()>> posts_;
    std::size_t done_ = 0;
  };

  OneAtATime(comm::Communicator& inner, Order& order) : PassThrough(inner), inner_(inner), order_(order) {}

  comm::Request exchange(const Queue& queue, std::span<const comm::Send> sends,
                         std::span<const comm::Receive> receives, int channel) override {
    return order_.add([this, queue, channel, s = std::vector(sends.begin(), sends.end()),
                       r = std::vector(receives.begin(), receives.end())] {
      return inner_.exchange(queue, s, r, channel);
    });
  }
  comm::Request start_all_gather(const Queue& queue, const void* send, void* receive, std::size_t bytes,
                                 int channel) override {
    return order_.add([=, this] { return inner_.start_all_gather(queue, send, receive, bytes, channel); });
  }
  comm::Request start_reduce_scatter(const Queue& queue, const void* send, void* receive,
                                     const comm::Reduction& blocks, int channel) override {
    return order_.add(
        [=, this] { return inner_.start_reduce_scatter(queue, send, receive, blocks, channel); });
  }
  void all_reduce(const Queue& queue, void* data, const comm::Reduction& elements) override {
    order_.finish_all();
    PassThrough::all_reduce(queue, data, elements);
  }

 private:
  comm::Communicator& inner_;
  Order& order_;
};

}  // namespace annulus::test
