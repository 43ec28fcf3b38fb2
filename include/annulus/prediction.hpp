#pragma once

/// The component prediction: what attention takes on a cluster that need not be there.
#include <annulus/prediction/simulator/choose.hpp>
#include <annulus/prediction/simulator/cluster.hpp>
#include <annulus/prediction/simulator/simulate.hpp>
