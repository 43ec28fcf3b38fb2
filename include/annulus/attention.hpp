#pragma once

/// The component attention: exact attention over a sequence on one rank or many.
#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/comm/loopback.hpp>
#include <annulus/attention/comm/mpi.hpp>
#include <annulus/attention/comm/transport.hpp>
#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/kernels/local.hpp>
#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/plan/schedules.hpp>
#include <annulus/attention/sequence/layout.hpp>
#include <annulus/attention/sequence/mask.hpp>
#include <annulus/attention/sparsity/attention.hpp>
#include <annulus/attention/sparsity/audit.hpp>
#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/start.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <annulus/base/version.hpp>
#include <annulus/cluster/topology/topology.hpp>
