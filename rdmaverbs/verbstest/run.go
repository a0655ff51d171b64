// SPDX-License-Identifier: Apache-2.0

package verbstest

import "testing"

// A Case is one test of the suite.
type Case struct {
	Name string
	Run  func(t *testing.T, open Open)
	// Once says that the case depends on an answer that is sent only once, a
	// NAK that ends the connection. It cannot run on a fabric that loses
	// packets.
	Once bool
	// Closes says that the case closes a device of its pair.
	Closes bool
}

// Run runs all cases as subtests. The cases that close a device run first, each
// with a new pair. The others share one pair.
func Run(t *testing.T, open Open) {
	cases := Cases()
	for _, c := range cases {
		if c.Closes {
			t.Run(c.Name, func(t *testing.T) { c.Run(t, open) })
		}
	}
	shared := open(t)
	for _, c := range cases {
		if !c.Closes {
			t.Run(c.Name, func(t *testing.T) { c.Run(t, func(testing.TB) Pair { return shared }) })
		}
	}
}

// Cases returns all cases.
func Cases() []Case {
	return []Case{
		{Name: "Attributes", Run: attributes},
		{Name: "Send", Run: send},
		{Name: "SendSizes", Run: sendSizes},
		{Name: "SendSplit", Run: sendSplit},
		{Name: "WriteSizes", Run: writeSizes},
		{Name: "ReadSizes", Run: readSizes},
		{Name: "LargeMessages", Run: largeMessages},
		{Name: "WriteImm", Run: writeImm},
		{Name: "Inline", Run: inline},
		{Name: "Unsignaled", Run: unsignaled},
		{Name: "PostFromNotify", Run: postFromNotify},
		{Name: "ManyQueuePairs", Run: manyQueuePairs},
		{Name: "StressMixed", Run: stressMixed},
		{Name: "ReceiverNotReady", Run: receiverNotReady},
		{Name: "ReceiverNeverReady", Run: receiverNeverReady},
		{Name: "ReceiveBufferTooSmall", Run: receiveTooSmall, Once: true},
		{Name: "RemoteAccess", Run: remoteAccess, Once: true},
		{Name: "StaleKey", Run: staleKey, Once: true},
		{Name: "NoQueuePairAccess", Run: noQueuePairAccess, Once: true},
		{Name: "LocalProtection", Run: localProtection},
		{Name: "FailureFlushesRest", Run: failureFlushesRest, Once: true},
		{Name: "States", Run: states},
		{Name: "QueueFull", Run: queueFull},
		{Name: "ToErrorFlushes", Run: toErrorFlushes},
		{Name: "CloseOrder", Run: closeOrder},
		{Name: "InvalidArguments", Run: invalidArguments},
		{Name: "DeviceCloseFlushes", Run: deviceCloseFlushes, Closes: true},
	}
}
