// A layer's computes, attention, collectives and copies on one network.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <annulus/attention/plan/schedules.hpp>

#include "prediction/simulator/support.hpp"
#include "prediction/step/layer_time.hpp"
#include "prediction/step/update_time.hpp"

namespace annulus::prediction {
namespace {

using plan::Pass;
using simulator::Cluster;
using Way = simulator::SideFlow::Way;

constexpr double near = 1e-6;

executor::Plans plans_of(const plan::Problem& problem) {
  return {.forward = plan::make_ring(problem, Pass::forward),
          .backward = plan::make_ring(problem, Pass::backward)};
}

/// Three ranks of a node: two exchanges of 0.4 s beside 0.1 s of compute each, then 0.1 s.
const Cluster inside = simulator::test::hand_cluster(20000);
LayerAttention attention_inside(int times = 1) {
  return {plans_of(simulator::test::hand_problem(3, 3)), times, inside};
}

TEST(LayerWaits, AloneAreThoseOfAttention) {
  const LayerAttention attention = attention_inside();
  EXPECT_NEAR(attention.alone(AttentionPass::forward).computing, 0.3, near);
  EXPECT_NEAR(attention.alone(AttentionPass::forward).exposed_communication, 0.6, near);
  EXPECT_EQ(attention.alone(AttentionPass::recompute).total(), 0);
  LayerTraffic none;
  const std::array parts{LayerPart{1, AttentionPass::forward}, LayerPart{2}};
  const LayerWaits waits = layer_waits(attention, parts, none);
  EXPECT_EQ(waits.communication, attention.alone(AttentionPass::forward).exposed_communication);
  EXPECT_EQ(waits.sharding + waits.copies, 0);
}

TEST(LayerWaits, WithoutACommonLinkALayerTakesTheLongest) {
  const LayerAttention attention = attention_inside();
  const std::array parts{LayerPart{1, AttentionPass::forward}, LayerPart{2}};  // 3.9 s
  for (const auto& [between, copied] : {std::pair{2.0, 3.0}, {5.0, 4.5}, {4.5, 5.0}}) {
    LayerTraffic traffic{.sharding = {{Way::inter_node, 100 * between, 100}},
                         .copies = {{Way::to_host, 1e9 * copied, 1e9}}};
    const LayerWaits waits = layer_waits(attention, parts, traffic);
    EXPECT_NEAR(waits.communication, 0.6, near);
    EXPECT_NEAR(waits.sharding, std::max(0.0, between - 3.9), near);
    EXPECT_NEAR(3.9 + waits.sharding + waits.copies, std::max({3.9, between, copied}), near);
    EXPECT_TRUE(traffic.sharding.empty() && traffic.copies.empty());
  }
}

TEST(LayerWaits, OnACommonLinkBytesAddUp) {
  const LayerAttention attention = attention_inside();
  // 800 bytes of the ring and 500 of a gather, from the ring's begin on.
  const std::array at_once{LayerPart{0, AttentionPass::forward}};
  LayerTraffic gather{.sharding = {{Way::intra_node, 500, 1000}}, .copies = {}};
  const LayerWaits waits = layer_waits(attention, at_once, gather);
  EXPECT_NEAR(0.3 + waits.communication + waits.sharding, 1.3 + 0.1, near);
  // What has travelled before the ring begins disturbs it no more.
  const std::array later{LayerPart{0.5, AttentionPass::forward}};
  gather = {.sharding = {{Way::intra_node, 500, 1000}}, .copies = {}};
  EXPECT_NEAR(layer_waits(attention, later, gather).communication, 0.6, near);
}

// The first sequences of a pass run beside what is left of the traffic, and all others alone.
TEST(LayerWaits, SequencesFollowOneAnother) {
  constexpr int times = 1 << 16;
  const LayerAttention once = attention_inside(), often = attention_inside(times);
  EXPECT_NEAR(often.alone(AttentionPass::forward).total(), times * once.alone(AttentionPass::forward).total(),
              times * near);
  const std::array parts{LayerPart{0, AttentionPass::forward}};
  const auto waits = [&](const LayerAttention& attention) {
    LayerTraffic gather{.sharding = {{Way::intra_node, 500, 1000}}, .copies = {}};
    return layer_waits(attention, parts, gather).communication;
  };
  EXPECT_GT(waits(once), 0.6 + near);
  EXPECT_NEAR(waits(often), waits(once) + 0.6 * (times - 1), times * near);
}

TEST(LayerWaits, WhatNobodyAwaitsIsLeft) {
  const LayerAttention attention = attention_inside();
  const std::array parts{LayerPart{1}};
  LayerTraffic traffic{.sharding = {{Way::inter_node, 500, 100}}, .copies = {{Way::to_host, 2e9, 1e9}}};
  const LayerWaits waits = layer_waits(attention, parts, traffic, false);
  EXPECT_EQ(waits.sharding, 0);
  EXPECT_NEAR(waits.copies, 1, near);
  ASSERT_EQ(traffic.sharding.size(), 1U);
  EXPECT_NEAR(traffic.sharding.front().bytes, 300, 1e-3);
}

/// A step of a small model on two nodes of two ranks, whose links are slow.
class Step : public testing::Test {
 protected:
  Step() {
    problem_.topology = Topology::uniform(4, 2);
    problem_.layout = Layout::parse("zigzag");
    problem_.mask = Mask::parse("causal", 4096);
    problem_.heads = problem_.kv_heads = 4;
    problem_.head_dim = 32;
    setting_.model = {
        .vocabulary = 256, .layers = 4, .hidden = 128, .heads = 4, .kv_heads = 4, .head_dim = 32, .ffn = 512};
    setting_.topology = problem_.topology;
    setting_.tokens = 4096;
    setting_.activations.recompute = {model::Recompute::full};
  }

  UpdateTime time(int stage, double offload, double bandwidth) {
    Cluster cluster = simulator::default_cluster();
    cluster.intra_node.bandwidth *= bandwidth;
    cluster.inter_node.bandwidth *= bandwidth;
    cluster.memory.host_copy *= bandwidth;
    setting_.state = {.stage = stage, .ranks = 4, .weights = DType::bf16};
    setting_.activations.offload = offload;
    const LayerAttention attention(plans_of(problem_), 1, cluster);
    attention_alone_ = 4 * (2 * attention.alone(AttentionPass::forward).total() +
                            attention.alone(AttentionPass::backward).total());
    const std::vector<const LayerAttention*> layers(4, &attention);
    return update_time(setting_, {.rows = {.sequences = 1, .tokens = 1024, .early = 0}}, layers, cluster);
  }

  plan::Problem problem_;
  Setting setting_;
  double attention_alone_ = 0;
};

TEST_F(Step, IsNeverShorterThanAnyOfItsFlows) {
  for (const double bandwidth : {1e-3, 1e-2, 0.1, 1.0}) {
    const double alone = time(3, 0, 1e9).total();  // no link takes time
    for (const int stage : {0, 1, 2, 3})
      for (const double offload : {0.0, 0.5, 1.0}) {
        const UpdateTime all = time(stage, offload, bandwidth);
        EXPECT_GE(all.total(), attention_alone_) << stage << ", " << offload << ", " << bandwidth;
        EXPECT_GE(all.exposed_communication, 0);
        EXPECT_GE(all.total(), (stage == 3 ? alone : 0) * (1 - 1e-9));
        // What is offloaded only adds to what travels.
        EXPECT_GE(all.total(), time(stage, 0, bandwidth).total() * (1 - 1e-9));
      }
  }
}

TEST_F(Step, GathersSlowDownTheRing) {
  constexpr double bandwidth = 1e-2;
  EXPECT_GT(time(3, 0, bandwidth).exposed_communication, 1.02 * time(0, 0, bandwidth).exposed_communication);
  // New weights of stages 1 and 2 travel beside the first forward alone.
  setting_.passes = 3;
  const double three = time(2, 0, bandwidth).exposed_communication;
  setting_.passes = 1;
  EXPECT_LT(three, 3 * time(2, 0, bandwidth).exposed_communication);
}

}  // namespace
}  // namespace annulus::prediction
