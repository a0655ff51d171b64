// SPDX-License-Identifier: Apache-2.0

package inside

import (
	"context"
	"os"
	"path/filepath"
)

// Owner is the process a connection belongs to, for listings.
type Owner struct {
	UID, PID uint32
	Command  string
	// Cookie is that of the program's socket (SO_COOKIE), or 0. The addresses of that socket are others than those of the
	// connection if the host translates them.
	Cookie uint64
}

type ownerKey struct{}

// WithOwner returns a context under which the Client and Server methods of a
// stack make connections that belong to o. Otherwise they belong to the calling
// process.
func WithOwner(ctx context.Context, o Owner) context.Context {
	return context.WithValue(ctx, ownerKey{}, o)
}

// OwnerFrom returns the owner that ctx names, or the calling process.
func OwnerFrom(ctx context.Context) Owner {
	if o, ok := ctx.Value(ownerKey{}).(Owner); ok {
		return o
	}
	return Self()
}

// Self returns the calling process.
func Self() Owner {
	return Owner{UID: uint32(os.Geteuid()), PID: uint32(os.Getpid()), Command: filepath.Base(os.Args[0])}
}
