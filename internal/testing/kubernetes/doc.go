// SPDX-License-Identifier: Apache-2.0

// Package kubernetes tests the files of deploy/kubernetes. It has only tests, and is a module
// of its own, because nothing else needs the libraries of Kubernetes.
//
// What kustomize makes of each folder must decode into the types of the Kubernetes API, without
// unknown fields, and must give no container more rights than it needs. Then the pods run: crun
// runs each container with the rights, mounts, user, arguments and seccomp profile that its
// manifest says, on two nodes that are network namespaces. The tests do what the kubelet does
// for these pods (volumes, init containers, probes), and nginx and curl of this machine are the
// images of the programs.
//
// There is no cluster: no API server, no scheduler, no network plugin, and no image is pulled.
package kubernetes
