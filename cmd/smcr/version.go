// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime/debug"
)

// release is the version of the source tree: that of a release, or of the next one.
const release = "0.1.0"

// revision is set by the build to the commit. Without git it is empty.
var revision string

// version returns the version of the program: the release, and the revision if the build
// or the Go tool knew it.
func version(info *debug.BuildInfo) string {
	rev := revision
	if rev == "" && info != nil {
		modified := false
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				rev = s.Value[:min(len(s.Value), 12)]
			case "vcs.modified":
				modified = s.Value == "true"
			}
		}
		if rev != "" && modified {
			rev += "-dirty"
		}
	}
	if rev == "" {
		return release
	}
	return release + " (" + rev + ")"
}
