#pragma once

#include <string>

#include <annulus/plan/plan.hpp>
#include <annulus/simulate/simulate.hpp>

namespace annulus::planner {

/// The colours and what they stand for, as HTML; only what the timeline holds.
std::string legend(const simulate::Timeline& timeline);

/// An SVG element: time in ms from left to right; below one another, node by node, every rank with a lane for
/// computes and waits, and one for what it sends inside its node and one for what it sends between nodes, as
/// far as it does. Transfers that overlap in a lane lie below one another. Every span has a title to hover.
std::string svg_timeline(const plan::Plan& plan, const simulate::Simulation& simulation);

}  // namespace annulus::planner
