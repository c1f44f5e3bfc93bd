BOT_NAME = "shop"
SPIDER_MODULES = ["shop.spiders"]
NEWSPIDER_MODULE = "shop.spiders"

ROBOTSTXT_OBEY = True
RETRY_TIMES = 1
REDIRECT_MAX_TIMES = 4
DOWNLOAD_DELAY = 0
CONCURRENT_REQUESTS_PER_DOMAIN = 8
TELNETCONSOLE_ENABLED = False
LOG_LEVEL = "WARNING"

ITEM_PIPELINES = {
    "shop.pipelines.Measuring": 100,
    "shop.pipelines.Dropping": 200,
    "shop.pipelines.Checking": 300,
}
EXTENSIONS = {"shop.extensions.Heard": 500}
FEED_EXPORT_ENCODING = "utf-8"
