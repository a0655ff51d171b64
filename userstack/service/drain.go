// SPDX-License-Identifier: Apache-2.0

package service

import "errors"

// When another process takes over, its Diverter stands at the devices beside that of this one. The steps are those of
// package takeover:
//
//	step    | new process                                     | old process
//	--------+-------------------------------------------------+------------------------------------------------------
//	Offer   | has a Diverter that takes nothing, and attaches | goes on
//	        | the cgroups of the programs that run            |
//	Done    | waits                                           | handOver: takes no new connections and no new programs
//	after   | takeOver: takes them                            | goes on with what it has announced, until that ends
//	Done    |                                                 |
//	renamed | found: attaches the cgroups of programs that    |
//	        | have come meanwhile                             |
//
// In between, for some microseconds, new connections are TCP. One of the processes may be without a Diverter.

// handOver has another process take the new connections, until takeBack.
func (w *boundary) handOver() (takeBack func(), err error) {
	if w == nil {
		return func() {}, nil
	}
	if err := w.d.Drain(); err != nil {
		return nil, errors.Join(err, w.d.Resume())
	}
	w.attached.HandOver()
	return func() {
		w.attached.TakeBack()
		if err := w.d.Resume(); err != nil {
			w.s.log.Error("new connections stay TCP", "err", err)
		}
	}, nil
}

// takeOver takes the new connections: the predecessor does not any more.
func (w *boundary) takeOver() {
	if w == nil {
		return
	}
	if err := w.d.Resume(); err != nil {
		w.s.log.Error("new connections stay TCP", "err", err)
	}
}

// found attaches the programs that came between the first look at the cgroups and the end of the predecessor's socket.
func (w *boundary) found() {
	if w == nil {
		return
	}
	if err := w.find(); err != nil {
		w.s.log.Error("programs that have just started stay TCP", "err", err)
	}
}
