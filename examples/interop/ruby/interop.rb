# The official Ruby SDK of Open Job Spec, unmodified, with an Ojster server.
#
# interop.rb features URL                         try each feature; print "ok NAME" or "FAIL NAME: reason"
# interop.rb enqueue URL QUEUE COUNT TYPE...      enqueue COUNT jobs of each type; print their ids
# interop.rb work URL QUEUE COUNT SECONDS [all]   run COUNT jobs, for at most SECONDS; with "all", take all types
begin
  require "ojs"
rescue LoadError
  # Release 0.4.0 names two files at its end that it does not contain. Everything before them is loaded.
  raise unless defined?(OJS::DurableContext)
end

QUEUE = "ruby-features"
QUIET = Logger.new(File::NULL)

# Says which job types the worker has handlers for. The SDK does not, and would get jobs of every type.
class TypedTransport < OJS::Transport::HTTP
  def post(path, body: nil, **rest)
    body = body.merge("job_types" => %w[ruby.greet interop.echo]) if path == "/workers/fetch"
    super(path, body: body, **rest)
  end
end

class TypedWorker < OJS::Worker
  def initialize(url, **options)
    super
    @transport = TypedTransport.new(url)
  end
end

def new_worker(url, queue, typed: false, &done)
  kind = typed ? TypedWorker : OJS::Worker
  worker = kind.new(url, queues: [queue], poll_interval: 0.1, heartbeat_interval: 1, logger: QUIET)
  worker.register("ruby.greet") do |context|
    done&.call
    { by: "ruby", greeting: "Hello, #{context.job.args["name"]}!" }
  end
  worker.register("interop.echo") do |context|
    done&.call
    { by: "ruby", echo: context.job.args }
  end
  register_features(worker) unless typed
  worker
end

def register_features(worker)
  worker.register("ruby.flaky") do |context|
    raise "the first attempt fails" if context.job.attempt == 1

    { by: "ruby", attempt: context.job.attempt }
  end
  worker.register("ruby.large") { |context| { text: "x" * context.job.args["size"] } }
  worker.register("ruby.beats") do |context|
    context.heartbeat
    { state: context.job.state }
  end
  worker.register("ruby.fails") { |_| raise "every attempt fails" }
  worker.register("ruby.durable") do |context|
    first = OJS::DurableContext.new(context).side_effect("attempt") { context.job.attempt }
    raise "the first attempt fails" if context.job.attempt == 1

    { first: first }
  end
end

# What the SDK can do: one public method for each feature, which raises an exception if it does not work.
class Features
  def initialize(url)
    @url = url
    @client = OJS::Client.new(url)
  end

  def health = expect(@client.health["status"], "ok")

  def manifest = expect(@client.manifest["capabilities"]["workflows"].nil?, false)

  def enqueue
    job = @client.enqueue("interop.echo", { text: "plain" }, queue: QUEUE)
    expect(@client.get_job(job.id).args, { "text" => "plain" })
  end

  def options
    policy = OJS::RetryPolicy.new(max_attempts: 7)
    options = { queue: QUEUE, priority: 5, meta: { trace: "t1" }, timeout: 5, retry: policy }
    job = @client.get_job(@client.enqueue("interop.echo", { text: "options" }, **options).id)
    expect([job.queue, job.priority, job.meta["trace"]], [QUEUE, 5, "t1"])
  end

  def delay
    expect(@client.enqueue("interop.echo", { text: "later" }, queue: QUEUE, delay: "1h").state, "scheduled")
  end

  def unique
    policy = OJS::UniquePolicy.new(keys: %w[type queue args], period: "PT1H")
    2.times { @client.enqueue("interop.echo", { text: "once" }, queue: "ruby-unique", unique: policy) }
    raise "the second job was accepted"
  rescue OJS::ConflictError
    nil
  end

  def batch_enqueue
    jobs = @client.enqueue_batch(%w[one two].map { |text| { type: "interop.echo", args: { text: text }, queue: QUEUE } })
    expect(jobs.map { |job| job.args["text"] }, %w[one two])
  end

  def cancel
    job = @client.enqueue("interop.echo", { text: "cancel" }, queue: "ruby-cancel")
    expect(@client.cancel_job(job.id)["state"], "cancelled")
  end

  def queues = expect(@client.queues.map { |queue| queue["name"] }.include?(QUEUE), true)

  def queue_stats
    stats = @client.queue_stats("ruby-unique")
    expect([stats.name, stats.depth], ["ruby-unique", 1])
  end

  def pause
    @client.pause_queue("ruby-unique")
    expect(@client.queue_stats("ruby-unique").paused?, true)
    @client.resume_queue("ruby-unique")
  end

  def dead_letter
    id = dead_job
    expect(@client.dead_letter_jobs.map(&:id).include?(id), true)
    expect(@client.retry_dead_letter(id).state, "available")
  end

  def dead_letter_discard
    id = dead_job
    @client.discard_dead_letter(id)
    expect(@client.dead_letter_jobs.map(&:id).include?(id), false)
  end

  def cron
    made = @client.register_cron_job(name: "ruby-cron", cron: "0 3 * * *", type: "interop.echo", args: [{ text: "cron" }])
    expect(made["cron"], "0 3 * * *")
    @client.unregister_cron_job("ruby-cron")
  end

  def cron_list
    @client.register_cron_job(name: "ruby-list", cron: "0 3 * * *", type: "interop.echo")
    expect(@client.list_cron_jobs.map { |entry| entry["name"] }.include?("ruby-list"), true)
  ensure
    @client.unregister_cron_job("ruby-list")
  end

  def schemas
    uri = "urn:interop:ruby:v1"
    @client.register_schema(uri: uri, type: "ruby.checked", version: "1", schema: { type: "array" })
    expect(@client.get_schema(uri)["uri"], uri)
    expect(@client.list_schemas.map { |schema| schema["uri"] }.include?(uri), true)
    @client.delete_schema(uri)
  end

  def worker
    expect(result("ruby.greet", { name: "Ada" }), { "by" => "ruby", "greeting" => "Hello, Ada!" })
  end

  def retry = expect(result("ruby.flaky", {}, 3), { "by" => "ruby", "attempt" => 2 })

  def heartbeat = expect(result("ruby.beats", {}).nil?, false)

  def large_result = expect(result("ruby.large", { size: 100_000 })["text"].length, 100_000)

  def checkpoints = expect(result("ruby.durable", {}, 3), { "first" => 1 })

  def events
    job = @client.enqueue("interop.echo", { text: "followed" }, queue: QUEUE, delay: "1s")
    seen = Queue.new
    subscription = OJS::SSESubscription.subscribe_job(@url, job.id) { |event| seen.push(event) }
    expect(Timeout.timeout(15) { seen.pop }.data.nil?, false)
  ensure
    subscription&.cancel
  end

  def chain = completes(OJS.chain(step("one"), step("two")))

  def group = completes(OJS.group(step("one"), step("two")))

  def batch = completes(OJS.batch([step("one"), step("two")], on_success: step("after")))

  def workflow_cancel
    id = @client.workflow(OJS.chain(OJS::Step.new(type: "ruby.waits", queue: "ruby-cancel")))["id"]
    @client.cancel_workflow(id)
    expect(@client.get_workflow(id)["state"], "cancelled")
  end

  private

  def expect(found, expected)
    raise "#{found.inspect} instead of #{expected.inspect}" unless found == expected
  end

  def step(text) = OJS::Step.new(type: "interop.echo", args: { text: text }, queue: QUEUE)

  def ended
    200.times do
      found, state = yield
      return found if %w[completed discarded cancelled failed].include?(state)

      sleep 0.1
    end
    raise "still running"
  end

  def run(type, args, attempts)
    policy = OJS::RetryPolicy.new(max_attempts: attempts, initial_interval: "PT0.1S", jitter: false, on_exhaustion: "dead_letter")
    job = @client.enqueue(type, args, queue: QUEUE, retry: policy)
    ended { @client.get_job(job.id).then { |found| [found, found.state] } }
  end

  def result(type, args, attempts = 1)
    job = run(type, args, attempts)
    job.state == "completed" ? job.result : raise("#{job.state}: #{job.error}")
  end

  def dead_job = run("ruby.fails", {}, 1).id

  def completes(definition)
    id = @client.workflow(definition)["id"]
    expect(ended { @client.get_workflow(id).then { |found| [found, found["state"]] } }["state"], "completed")
  end
end

def features(url)
  worker = new_worker(url, QUEUE)
  running = Thread.new { worker.start }
  $stdout.sync = true
  names = Features.public_instance_methods(false)
  names.sort_by { |name| Features.instance_method(name).source_location.last }.each do |name|
    Features.new(url).public_send(name)
    puts "ok #{name.to_s.tr("_", "-")}"
  rescue StandardError => error
    puts "FAIL #{name.to_s.tr("_", "-")}: #{error.class}: #{error.message.lines.first.to_s.strip}"
  end
  worker.stop
  running.join
end

def enqueue(url, queue, count, types)
  client = OJS::Client.new(url)
  count.times do |number|
    types.each { |type| puts client.enqueue(type, { name: "Ada", text: "ruby #{number}" }, queue: queue).id }
  end
end

def work(url, queue, count, seconds, typed)
  left = Queue.new
  worker = new_worker(url, queue, typed: typed) { left.push(nil) }
  Thread.new do
    Timeout.timeout(seconds) { count.times { left.pop } }
  rescue Timeout::Error
    nil
  ensure
    worker.stop
  end
  worker.start
end

case ARGV
in ["features", url] then features(url)
in ["enqueue", url, queue, count, *types] then enqueue(url, queue, count.to_i, types)
in ["work", url, queue, count, seconds, *rest] then work(url, queue, count.to_i, seconds.to_f, rest != ["all"])
else abort "see the first lines of this file"
end
