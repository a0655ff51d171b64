// SPDX-License-Identifier: Apache-2.0

//go:build deps

// Package deps pins modules while their importers are being written.
package deps

import (
	_ "github.com/cilium/ebpf"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/mdlayher/genetlink"
	_ "github.com/mdlayher/netlink"
	_ "github.com/mdlayher/netlink/nlenc"
	_ "github.com/mdlayher/packet"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/spf13/cobra"
	_ "github.com/spf13/cobra/doc"
	_ "github.com/vishvananda/netlink"
	_ "github.com/vishvananda/netns"
	_ "golang.org/x/net/bpf"
	_ "golang.org/x/net/nettest"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/term"
	_ "gopkg.in/yaml.v3"
	_ "pgregory.net/rapid"
)
