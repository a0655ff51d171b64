// SPDX-License-Identifier: Apache-2.0

package nl_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"smcr/nl"
)

// This example lists the link groups of all stacks of this host: of the kernel's stack
// and of the stack in user space.
func ExampleDialAll() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	stacks, err := nl.DialAll(ctx)
	if errors.Is(err, nl.ErrNoBackend) {
		log.Fatal("neither the kernel nor a program here has SMC")
	} else if err != nil {
		log.Fatal(err)
	}
	defer stacks.Close()
	rows, err := nl.All(ctx, stacks, nl.Control.LinkGroups)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range rows {
		fmt.Println(r.Stack, r.Value.ID, r.Value.Role, r.Value.Conns)
	}
}

// eids is a Control that implements only the methods for enterprise IDs. The embedded
// Control would have the others.
type eids struct {
	nl.Control
	ids []string
}

func (e *eids) UEIDs(context.Context) ([]string, error) { return e.ids, nil }

func (e *eids) AddUEID(_ context.Context, id string) error {
	if err := nl.CheckEID(id); err != nil {
		return err
	}
	if slices.Contains(e.ids, id) {
		return syscall.EEXIST
	}
	e.ids = append(e.ids, id)
	return nil
}

// A Server answers netlink messages with the data of any Control. A Client of the server
// returns the same answers and errors. The commands of smcr use such a socket with
// --backend unix:PATH.
func ExampleNewServer() {
	dir, err := os.MkdirTemp("", "nl")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	address := filepath.Join(dir, "control")
	l, err := nl.ListenUnix(address)
	if err != nil {
		log.Fatal(err)
	}
	srv := nl.NewServer(&eids{ids: []string{"EID-1"}}, nl.ServerConfig{
		Authorize: func(p nl.Peer) bool { return p.UID == uint32(os.Geteuid()) }, // who may change the stack
	})
	defer srv.Close()
	go srv.Serve(l) //nolint:errcheck // returns nil after Close

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	client, err := nl.DialUnix(ctx, address)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := client.AddUEID(ctx, "EID-2"); err != nil {
		log.Fatal(err)
	}
	err = client.AddUEID(ctx, "EID-2")
	fmt.Println("once more:", errors.Is(err, os.ErrExist))
	err = client.AddUEID(ctx, "lower case")
	fmt.Println("malformed:", errors.Is(err, os.ErrInvalid))
	ids, err := client.UEIDs(ctx)
	fmt.Println(ids, err)
	// Output:
	// once more: true
	// malformed: true
	// [EID-1 EID-2] <nil>
}

// The String method and the parser of an identifier use the form of other tools.
func ExampleParseLinkGroupID() {
	id, err := nl.ParseLinkGroupID("00000100")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(uint32(id), id)
	// Output: 256 00000100
}
