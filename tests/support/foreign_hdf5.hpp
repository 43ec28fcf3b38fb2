#pragma once

#include <H5PLextern.h>
#include <hdf5.h>

#include <functional>
#include <string>
#include <vector>

namespace annulus::test {

/// Elements that another program wrote to an HDF5 file in a way that Annulus refuses, and what its error
/// says.
struct RefusedDataset {
  const char* name;

  /// Writes a dataset of this name, type and extents to the group.
  std::function<void(hid_t group, const std::string& name, hid_t type, const std::vector<hsize_t>& extents)>
      write;
  const char* problem;
  const char* remedy;
};

namespace detail {

inline hid_t dataset(hid_t group, const std::string& name, hid_t type, const std::vector<hsize_t>& extents,
                     const std::function<void(hid_t)>& layout, bool written = false) {
  const hid_t space = H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr);
  const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
  layout(properties);
  const hid_t id = H5Dcreate2(group, name.c_str(), type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
  if (written) {
    hsize_t elements = 1;
    for (const hsize_t extent : extents) elements *= extent;
    const std::vector<unsigned char> zeros(elements * H5Tget_size(type));
    H5Dwrite(id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros.data());
  }
  H5Pclose(properties);
  H5Sclose(space);
  return id;
}

/// A filter of nobody, which changes nothing.
inline std::size_t pass_on(unsigned, std::size_t, const unsigned*, std::size_t size, std::size_t*, void**) {
  return size;
}

}  // namespace detail

/// All of them. Every way leads out of the file, to code of others, or to more than the file holds.
inline std::vector<RefusedDataset> refused_datasets() {
  using Extents = std::vector<hsize_t>;
  const auto plain = [](hid_t group, const std::string& name, hid_t type, const Extents& extents) {
    H5Dclose(detail::dataset(
        group, name, type, extents, [](hid_t) {}, true));
  };
  const auto laid_out = [](auto layout, bool written = false) {
    return [=](hid_t group, const std::string& name, hid_t type, const Extents& extents) {
      H5Dclose(detail::dataset(
          group, name, type, extents, [&](hid_t properties) { layout(properties, type, extents); }, written));
    };
  };
  std::vector<RefusedDataset> all;
  all.push_back({"ExternalStorage", laid_out([](hid_t properties, hid_t, const Extents&) {
                   H5Pset_external(properties, "/etc/passwd", 0, H5F_UNLIMITED);
                 }),
                 "in another file (external storage)", "write them into this file"});
  all.push_back({"ExternalLink",
                 [](hid_t group, const std::string& name, hid_t, const Extents&) {
                   H5Lcreate_external("other.h5", "/x", group, name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
                 },
                 "is an external link", "write the object itself"});
  all.push_back({"SoftLink",
                 [=](hid_t group, const std::string& name, hid_t type, const Extents& extents) {
                   plain(group, name + "_itself", type, extents);
                   H5Lcreate_soft((name + "_itself").c_str(), group, name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
                 },
                 "is a soft link", "write the object itself"});
  all.push_back({"UserLink",
                 [](hid_t group, const std::string& name, hid_t, const Extents&) {
                   const H5L_class_t kind{H5L_LINK_CLASS_T_VERS,
                                          static_cast<H5L_type_t>(100),
                                          "own",
                                          nullptr,
                                          nullptr,
                                          nullptr,
                                          [](auto...) { return hid_t{-1}; },
                                          nullptr,
                                          nullptr};
                   H5Lregister(&kind);
                   H5Lcreate_ud(group, name.c_str(), kind.id, nullptr, 0, H5P_DEFAULT, H5P_DEFAULT);
                   H5Lunregister(kind.id);
                 },
                 "is a link of a kind that Annulus does not know", "write the object itself"});
  all.push_back({"Virtual", laid_out([](hid_t properties, hid_t, const Extents& extents) {
                   const hid_t space =
                       H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr);
                   H5Pset_virtual(properties, space, "other.h5", "x", space);
                   H5Sclose(space);
                 }),
                 "virtual dataset", "write the elements into this file"});
  all.push_back({"FilterOfOthers",
                 laid_out(
                     [](hid_t properties, hid_t, const Extents& extents) {
                       const H5Z_class2_t filter{H5Z_CLASS_T_VERS, 300, 1, 1, "own", nullptr, nullptr,
                                                 detail::pass_on};
                       H5Zregister(&filter);
                       H5Pset_chunk(properties, static_cast<int>(extents.size()), extents.data());
                       H5Pset_filter(properties, 300, H5Z_FLAG_MANDATORY, 0, nullptr);
                     },
                     true),
                 "with the filter 300", "gzip, shuffle and fletcher32"});
  all.push_back({"NeverWritten", laid_out([](hid_t, hid_t, const Extents&) {}), "never written",
                 "the file is incomplete"});
  all.push_back({"ChunksNeverWritten", laid_out([](hid_t properties, hid_t, const Extents& extents) {
                   H5Pset_chunk(properties, static_cast<int>(extents.size()), extents.data());
                 }),
                 "never written", "the file is incomplete"});
  all.push_back({"HugeExtents",
                 [](hid_t group, const std::string& name, hid_t type, const Extents& extents) {
                   Extents huge = extents;
                   huge.front() = hsize_t{1} << 40;
                   H5Dclose(detail::dataset(group, name, type, huge, [&](hid_t properties) {
                     H5Pset_chunk(properties, static_cast<int>(extents.size()), extents.data());
                   }));
                 },
                 "larger than what the file holds", "copy or write it again"});
  all.push_back({"HugeChunks",
                 [](hid_t group, const std::string& name, hid_t type, const Extents& extents) {
                   Extents huge = extents;
                   huge.front() = hsize_t{1} << 28;
                   H5Dclose(detail::dataset(group, name, type, huge, [&](hid_t properties) {
                     H5Pset_chunk(properties, static_cast<int>(huge.size()), huge.data());
                   }));
                 },
                 "chunks of more than 128 MiB", "write smaller chunks"});
  all.push_back({"NamedType",
                 [](hid_t group, const std::string& name, hid_t type, const Extents& extents) {
                   const hid_t named = H5Tcopy(type);
                   H5Tcommit2(group, (name + "_type").c_str(), named, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
                   H5Dclose(detail::dataset(
                       group, name, named, extents, [](hid_t) {}, true));
                   H5Tclose(named);
                 },
                 "a named type", "write it again without"});
  return all;
}

}  // namespace annulus::test
