// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package main

import (
	"fmt"
	"os"
	"runtime"
)

func main() {
	_, _ = Request{}, Answer{}
	fmt.Fprintln(os.Stderr, "inject: not on", runtime.GOARCH)
	os.Exit(1)
}
