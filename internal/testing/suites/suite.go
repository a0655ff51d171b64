// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"slices"
	"time"
)

// A Suite is a test suite of others.
type Suite struct {
	Name string
	// Packages are the Debian packages that it needs, each with a file of it.
	Packages []Package
	// Source is the Debian source package from which it comes, or "".
	Source string
	// Build is a shell script that builds the tests, in the folder of the source, or in an
	// empty one.
	Build string
	// Version is a shell command that prints the version under test.
	Version string
	Jobs    []Job
}

// A Package is a Debian package that is installed if File exists.
type Package struct{ File, Name string }

// A Job is a part of a suite that is run as a whole. In Argv, Server, Dir and Env, $SOURCE is
// the folder of the source or of the build, $WORK an empty folder of the run, $RESULTS a file
// for the results, $SCRIPTS the folder of this package's scripts, $ADDR the address of the
// host with the server, and $TIMEOUT the seconds after which the program ends itself and says
// where it hangs, a little before Limit.
type Job struct {
	Name string
	// Argv is the program. With Server, it is the client.
	Argv []string
	// Server is the server of a suite whose two sides are started apart, or nil for one that
	// talks to itself. It is ended when the client has ended.
	Server []string
	Dir    string
	Env    []string
	// Limit is the time after which the job has failed.
	Limit time.Duration
	Parse parser
	// Only returns arguments that select tests by their names, added to Argv. nil: the whole
	// job runs again.
	Only func(tests []string) []string
	// Quick says that the job takes less than half a minute.
	Quick bool
}

// A Mode is a way to run a job.
type Mode struct {
	Name string
	// Flags are those of smcr run; nil is TCP, without smcr.
	Flags []string
	// Apart means that server and client are on two hosts. Only jobs with a server run so.
	Apart bool
	// Loop has the connections of the host with itself go by a second host (package reflector).
	Loop bool
	// Judge is the mode with which it is compared; "" is tcp.
	Judge string
}

// Modes are the ways to run a suite. The first one is TCP; a judge comes before those whom it judges.
var Modes = []Mode{
	{Name: "tcp"},
	{Name: "host", Flags: flags}, // connections within a host are TCP
	{Name: "roce", Flags: always, Apart: true},
	{Name: "adapt", Flags: flags, Apart: true},
	{Name: "tcploop", Loop: true},
	{Name: "loop", Flags: always, Loop: true, Judge: "tcploop"},
}

var flags, always = []string{"--mode", "user", "-v"}, []string{"--mode", "user", "-v", "--no-adapt"}

// Has reports whether a job can run in the mode.
func (j *Job) Has(m Mode) bool { return !m.Apart || j.Server != nil }

// TheJudge returns the mode with which m is compared.
func (m Mode) TheJudge() Mode {
	return Modes[max(0, slices.IndexFunc(Modes, func(o Mode) bool { return o.Name == m.Judge }))]
}
